"""AllenNLP's ELMo under its own names: signatures, vectors, state dicts, carried state."""

import copy
import inspect
import io
import json
import pickle
import shutil
import tarfile

import h5py
import numpy as np
import pytest
import torch
from models import FIXTURES, lively, needs_shared, tiny
from torch import nn

from elmofire import Embedder, InputError, ModelError, load_weights, save_weights
from elmofire.compat.allennlp import (
    Elmo,
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    ElmoTokenEmbedder,
    ScalarMix,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
)

SENTENCES = [["the", "cat", "sat"], ["why"], []]
PUBLISHED = (FIXTURES / "allennlp/options.json", FIXTURES / "allennlp/lm_weights.hdf5")
MIXES = [([0.1, 0.3, 0.5], 1.1), ([0.2, 0.4, 0.6], 0.88)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A lively model of odd sizes as AllenNLP's two files; tokens of 50 characters, as its ids have."""
    folder = tmp_path_factory.mktemp("model")
    save_weights(lively(tiny(encoder_max_characters=50, encoder_highways=2)), folder, to="hdf5")
    return folder / "options.json", folder / "weights.hdf5"


def trained(elmo):
    """Other values everywhere, as training leaves them."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in elmo.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return elmo


def vectors(elmo, batch=SENTENCES):
    with torch.no_grad():
        return elmo.eval()(batch_to_ids(batch))["elmo_representations"]


def assert_same(found, expected, **bounds):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, **bounds)


class TestSignatures:
    @pytest.mark.parametrize(
        ("what", "arguments"),
        [
            (
                Elmo,
                "options_file, weight_file, num_output_representations, requires_grad=False, do_layer_norm=False, dropout=0.5, "
                "vocab_to_cache=None, keep_sentence_boundaries=False, scalar_mix_parameters=None, module=None",
            ),
            (Elmo.forward, "self, inputs, word_inputs=None"),
            (_ElmoBiLm, "options_file, weight_file, requires_grad=False, vocab_to_cache=None"),
            (_ElmoBiLm.forward, "self, inputs, word_inputs=None"),
            (_ElmoCharacterEncoder, "options_file, weight_file, requires_grad=False"),
            (ScalarMix, "mixture_size, do_layer_norm=False, initial_scalar_parameters=None, trainable=True"),
            (ELMoTokenCharactersIndexer, "namespace='elmo_characters', tokens_to_add=None, token_min_padding_length=0"),
            (ElmoTokenEmbedder.forward, "self, elmo_tokens, word_inputs=None"),
            (batch_to_ids, "batch"),
        ],
        ids=lambda value: getattr(value, "__qualname__", ""),
    )
    def test_they_are_the_old_ones_and_extensions_are_keywords(self, what, arguments):
        found = [p for p in inspect.signature(what).parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        shown = [p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}" for p in found]
        assert ", ".join(shown) == arguments

    def test_the_token_embedder_keeps_the_order_of_its_arguments(self):
        names = list(inspect.signature(ElmoTokenEmbedder).parameters)
        assert names[2:8] == [
            "do_layer_norm",
            "dropout",
            "requires_grad",
            "projection_dim",
            "vocab_to_cache",
            "scalar_mix_parameters",
        ]


class TestCharacters:
    @needs_shared
    def test_odd_tokens_have_the_published_ids(self):
        odd = json.loads((FIXTURES / "edge_tokens.json").read_text())
        mapper = ELMoCharacterMapper()
        for case in odd:
            assert mapper.convert_word_to_char_ids(case["token"]) == case["char_ids"]
        assert batch_to_ids([[case["token"] for case in odd]])[0].tolist() == [case["char_ids"] for case in odd]

    def test_added_tokens_have_an_id_of_their_own(self):
        mapper = ELMoCharacterMapper({"[SEP]": 7, "<S>": 8})
        assert mapper.convert_word_to_char_ids("[SEP]") == [259, 8, 260, *[261] * 47]
        assert mapper.convert_word_to_char_ids("<S>")[:3] == [259, 9, 260]
        assert mapper.convert_word_to_char_ids("</S>")[:3] == [259, 258, 260]
        assert mapper == ELMoCharacterMapper({"[SEP]": 7, "<S>": 8}) != ELMoCharacterMapper()
        with pytest.raises(InputError, match="ids are 0 to 260"):
            ELMoCharacterMapper({"x": 261})

    def test_a_batch_is_padded_with_zeros(self):
        ids = batch_to_ids([["a", "b"], [], ["c"]])
        assert ids.dtype == torch.int64
        assert ids.shape == (3, 2, 50)
        assert not ids[1].any()
        assert not ids[2, 1].any()
        assert batch_to_ids([]).shape == (0, 0, 50)
        with pytest.raises(InputError, match="not strings"):
            batch_to_ids(["a b"])

    def test_the_indexer_pads_for_a_data_loader(self):
        indexer = ELMoTokenCharactersIndexer(tokens_to_add={"!": 3}, token_min_padding_length=4)
        indexed = indexer.tokens_to_indices(["a", "!"])
        padded = indexer.as_padded_tensor_dict(indexed, indexer.get_padding_lengths(indexed))["elmo_tokens"]
        assert padded.shape == (4, 50)
        assert padded[1, 1] == 4
        assert not padded[2:].any()


class TestVectors:
    @needs_shared
    @pytest.mark.parametrize("keep_boundaries", [False, True])
    @pytest.mark.parametrize("layer_norm", [False, True])
    def test_two_mixes_are_the_published_ones(self, layer_norm, keep_boundaries):
        elmo = Elmo(
            *PUBLISHED, 2, do_layer_norm=layer_norm, dropout=0.5, keep_sentence_boundaries=keep_boundaries
        ).eval()
        state = elmo.state_dict()
        for k, (weights, gamma) in enumerate(MIXES):
            state[f"scalar_mix_{k}.gamma"] = torch.tensor([gamma])
            state.update({f"scalar_mix_{k}.scalar_parameters.{j}": torch.tensor([w]) for j, w in enumerate(weights)})
        elmo.load_state_dict(state)
        output = elmo(batch_to_ids(json.loads((FIXTURES / "elmo_layer.json").read_text())["sentences"]))
        with h5py.File(FIXTURES / "elmo_layer.hdf5") as file:
            expected = file[f"layer_norm_{int(layer_norm)}/keep_boundaries_{int(keep_boundaries)}"]
            assert output["mask"].dtype == torch.bool
            np.testing.assert_array_equal(output["mask"], expected["mask"][()].astype(bool))
            for k, found in enumerate(output["elmo_representations"]):
                np.testing.assert_allclose(found.detach(), expected[f"representation_{k}"][()], rtol=1e-5, atol=2e-6)

    @needs_shared
    def test_the_carried_state_follows_batches_of_changing_size(self):
        bilm = _ElmoBiLm(*PUBLISHED, stateful=True)
        with h5py.File(FIXTURES / "stateful_resize.hdf5") as expected, torch.no_grad():
            for call, batch in enumerate(json.loads((FIXTURES / "stateful_resize.json").read_text())):
                layers = torch.stack(bilm(batch_to_ids(batch))["activations"], dim=1)
                for row, sentence in enumerate(batch):
                    found = layers[row, :, 1 : len(sentence) + 1]
                    np.testing.assert_allclose(found, expected[f"{call}/{row}"][()], rtol=1e-5, atol=2e-6)
            for found, name in zip(bilm._elmo_lstm._states, ("hidden", "memory"), strict=True):
                np.testing.assert_allclose(found, expected[f"final_state/{name}"][()], rtol=1e-5, atol=2e-6)

    def test_inputs_of_more_dimensions_keep_them(self, files):
        elmo = Elmo(*files, 1, dropout=0)
        ids = batch_to_ids([["a", "b"], ["c"], ["d"], ["e", "f"]])
        flat, nested = elmo(ids), elmo(ids.reshape(2, 2, 2, 50))
        assert nested["elmo_representations"][0].shape == (2, 2, 2, 12)
        assert nested["mask"].tolist() == flat["mask"].reshape(2, 2, 2).tolist()
        assert_same(nested["elmo_representations"], [flat["elmo_representations"][0].reshape(2, 2, 2, 12)])
        kept = Elmo(*files, 1, dropout=0, keep_sentence_boundaries=True)(ids.reshape(2, 2, 2, 50))
        assert kept["mask"].shape == (2, 2, 4)

    @pytest.mark.parametrize("batch", [[], [[]], [[], []]], ids=["no sentence", "an empty one", "two empty ones"])
    def test_nothing_gives_nothing(self, files, batch):
        output = Elmo(*files, 1, do_layer_norm=bool(batch))(batch_to_ids(batch))
        assert output["elmo_representations"][0].shape == (len(batch), 0, 12)
        assert output["mask"].shape == (len(batch), 0)
        kept = Elmo(*files, 1, dropout=0, keep_sentence_boundaries=True)(batch_to_ids(batch))
        assert kept["mask"].tolist() == [[True, True]] * len(batch)
        assert kept["elmo_representations"][0].isfinite().all()

    def test_fixed_mix_parameters_choose_a_layer_and_are_not_trained(self, files):
        elmo = Elmo(*files, 2, dropout=0, scalar_mix_parameters=[-9e10, 1, -9e10])
        expected = Embedder(load_weights(files)).embed(SENTENCES, layers=1)
        for found in elmo(batch_to_ids(SENTENCES))["elmo_representations"]:
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=2e-6)
        assert not any(parameter.requires_grad for parameter in elmo.parameters())
        with pytest.raises(ValueError, match="2 weights for 3 layers"):
            Elmo(*files, 1, scalar_mix_parameters=[0.0, 1.0])

    def test_dropout_falls_in_training_only_and_on_each_representation_alone(self, files):
        elmo = Elmo(*files, 2)
        one, other = elmo(batch_to_ids([["a"] * 50]))["elmo_representations"]
        assert 0.3 < (one == 0).float().mean() < 0.7
        assert ((one == 0) != (other == 0)).any()
        one, other = vectors(elmo, [["a"] * 50])
        assert_same([one], [other])
        assert (one != 0).all()

    def test_a_module_takes_the_place_of_the_files(self, files):
        bilm = _ElmoBiLm(*files)
        assert_same(vectors(Elmo(None, None, 1, module=bilm)), vectors(Elmo(*files, 1)))
        assert Elmo(None, None, 1, module=bilm).get_output_dim() == 12
        with pytest.raises(InputError, match="both should be None"):
            Elmo(*files, 1, module=bilm)
        with pytest.raises(InputError, match="its own affair"):
            Elmo(None, None, 1, module=bilm, stateful=True)

    def test_the_parts_answer_as_they_did(self, files):
        bilm = _ElmoBiLm(*files)
        output = bilm(batch_to_ids(SENTENCES))
        assert (bilm.num_layers, bilm.get_output_dim(), len(output["activations"])) == (3, 12, 3)
        expected = Embedder(load_weights(files)).embed(SENTENCES, layers="all", boundaries=True)
        for row, found in enumerate(expected):
            for k in range(3):
                np.testing.assert_allclose(
                    output["activations"][k][row, : found.shape[1]].detach(), found[k], rtol=1e-5, atol=2e-6
                )
                assert not output["activations"][k][row, found.shape[1] :].any()
        encoded = _ElmoCharacterEncoder(*files)(batch_to_ids(SENTENCES))
        assert_same([encoded["token_embedding"]], [bilm._token_embedder(batch_to_ids(SENTENCES))["token_embedding"]])
        np.testing.assert_allclose(encoded["token_embedding"][0].detach(), expected[0][0][:, :6], rtol=1e-5, atol=2e-6)
        assert encoded["mask"].sum(dim=1).tolist() == [5, 3, 2]

    def test_the_token_embedder_projects(self, files):
        embedder = ElmoTokenEmbedder(*files, dropout=0, projection_dim=4)
        assert embedder(batch_to_ids(SENTENCES)).shape == (3, 3, 4)
        assert (embedder.get_output_dim(), ElmoTokenEmbedder(*files).get_output_dim()) == (4, 12)
        assert {"_projection.weight", "_projection.bias", "_elmo.scalar_mix_0.gamma"} < set(embedder.state_dict())


class TestCache:
    WORDS = ("@@padding@@", "the", "cat", "sat", "why")
    IDS = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])

    def test_cached_words_give_the_vectors_of_their_characters(self, files):
        cached = Elmo(*files, 1, dropout=0, vocab_to_cache=list(self.WORDS))
        ids = batch_to_ids(SENTENCES)
        plain = Elmo(*files, 1, dropout=0)(ids)
        found = cached(ids, self.IDS)
        assert found["mask"].tolist() == plain["mask"].tolist()
        assert_same(found["elmo_representations"], plain["elmo_representations"])
        nonsense = torch.ones_like(ids)  # the cache is asked, not the characters
        assert_same(cached(nonsense, self.IDS)["elmo_representations"], plain["elmo_representations"])
        nested = cached(ids[None], self.IDS[None])["elmo_representations"][0]
        assert_same([nested[0]], plain["elmo_representations"])

    def test_words_beyond_the_cache_are_read_from_their_characters(self, files):
        cached = Elmo(*files, 1, dropout=0, vocab_to_cache=list(self.WORDS))
        ids = batch_to_ids(SENTENCES)
        assert_same(cached(ids, self.IDS + 99)["elmo_representations"], cached(ids)["elmo_representations"])

    def test_its_table_has_its_old_name(self, files):
        table = Elmo(*files, 1, vocab_to_cache=list(self.WORDS)).state_dict()["_elmo_lstm._word_embedding.weight"]
        assert table.shape == (5, 6)
        assert not table[0].any()

    def test_what_cannot_work_is_told(self, files):
        with pytest.warns(UserWarning, match="vocab_to_cache keeps word vectors"):
            Elmo(*files, 1, requires_grad=True, vocab_to_cache=list(self.WORDS))
        with pytest.warns(UserWarning, match="not read without a vocab_to_cache"):
            Elmo(*files, 1)(batch_to_ids(SENTENCES), self.IDS)


class TestStateDict:
    @needs_shared
    def test_a_tagger_gets_its_elmo_back_without_key_surgery(self):
        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.text_field_embedder = nn.Module()
                self.text_field_embedder.token_embedder_elmo = ElmoTokenEmbedder(*PUBLISHED)

        with tarfile.open(FIXTURES / "allennlp_tagger_archive/model.tar.gz") as archive:
            saved = torch.load(io.BytesIO(archive.extractfile("weights.th").read()), weights_only=True)
        prefix = "text_field_embedder.token_embedder_elmo._elmo."
        tagger = Tagger()
        with torch.no_grad():
            for parameter in tagger.parameters():
                parameter.zero_()  # so that all there is comes from the archive
        tagger.load_state_dict({key: value for key, value in saved.items() if key.startswith(prefix)}, strict=True)
        again = tagger.state_dict()
        assert all(torch.equal(again[key], value) for key, value in saved.items() if key.startswith(prefix))

        mix = torch.cat([saved[f"{prefix}scalar_mix_0.scalar_parameters.{j}"] for j in range(3)]).softmax(0).numpy()
        gamma = saved[f"{prefix}scalar_mix_0.gamma"].item()
        lanes = json.loads((FIXTURES / "allennlp/sentences.json").read_text())
        with h5py.File(FIXTURES / "expected_embeddings.hdf5") as file, torch.no_grad():
            for k, lane in enumerate(lanes):
                found = tagger.eval().text_field_embedder.token_embedder_elmo(
                    batch_to_ids([text.split() for text in lane])
                )
                for i, text in enumerate(lane):
                    expected = gamma * np.tensordot(mix, file[f"stateless/{k}/{i}"][()], axes=1)
                    np.testing.assert_allclose(found[i, : len(text.split())], expected, rtol=1e-5, atol=2e-6)

    @needs_shared
    def test_names_and_shapes_are_those_of_the_archive(self):
        with tarfile.open(FIXTURES / "allennlp_tagger_archive/model.tar.gz") as archive:
            saved = torch.load(io.BytesIO(archive.extractfile("weights.th").read()), weights_only=True)
        prefix = "text_field_embedder.token_embedder_elmo._elmo."
        theirs = {key.removeprefix(prefix): value.shape for key, value in saved.items() if key.startswith(prefix)}
        assert {key: value.shape for key, value in Elmo(*PUBLISHED, 1).state_dict().items()} == theirs

    def test_it_comes_back_bit_for_bit(self, files):
        elmo = trained(Elmo(*files, 2))
        state = elmo.state_dict()
        other = Elmo(*files, 2)
        other.load_state_dict(state, strict=True)
        assert all(torch.equal(x, y) for x, y in zip(elmo.parameters(), other.parameters(), strict=True))
        assert all(torch.equal(value, other.state_dict()[key]) for key, value in state.items())
        assert_same(vectors(other), vectors(elmo), rtol=0, atol=0)
        assert not any(".inner." in name for name in state)

    def test_the_bias_holds_the_forget_gates_one(self, files):
        bias = Elmo(*files, 1).state_dict()["_elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias"]
        stored = load_weights(files).arrays["forward.0.bias"]
        np.testing.assert_array_equal(bias[11:22], stored[11:22] + np.float32(1))
        np.testing.assert_array_equal(bias[:11], stored[:11])

    def test_the_gate_is_negated_and_the_table_has_a_row_for_padding(self, files):
        state, arrays = Elmo(*files, 1).state_dict(), load_weights(files).arrays
        both = state["_elmo_lstm._token_embedder._highways._layers.1.weight"]
        np.testing.assert_array_equal(both[:15], arrays["encoder.highways.1.transform.weight"])
        np.testing.assert_array_equal(both[15:], -arrays["encoder.highways.1.gate.weight"])
        table = state["_elmo_lstm._token_embedder._char_embedding_weights"]
        assert table.shape == (262, 5)
        assert not table[0].any()

    def test_what_is_missing_too_much_or_of_another_shape_is_told_by_its_old_name(self, files):
        elmo = Elmo(*files, 1)
        state = elmo.state_dict()
        del state["_elmo_lstm._token_embedder._highways._layers.0.bias"], state["scalar_mix_0.gamma"]
        state["_elmo_lstm._elmo_lstm.sideways_layer_0.bias"] = torch.ones(1)
        state["scalar_mix_0.scalar_parameters.3"] = torch.ones(1)
        found = elmo.load_state_dict(state, strict=False)
        assert sorted(found.missing_keys) == [
            "_elmo_lstm._token_embedder._highways._layers.0.bias",
            "scalar_mix_0.gamma",
        ]
        assert sorted(found.unexpected_keys) == [
            "_elmo_lstm._elmo_lstm.sideways_layer_0.bias",
            "scalar_mix_0.scalar_parameters.3",
        ]
        before = vectors(elmo)
        wrong = {**elmo.state_dict(), "_elmo_lstm._token_embedder._projection.bias": torch.ones(7)}
        with pytest.raises(RuntimeError, match=r"size mismatch for _elmo_lstm\._token_embedder\._projection\.bias"):
            elmo.load_state_dict(wrong)
        wrong = {**elmo.state_dict(), "scalar_mix_0.gamma": torch.ones(2)}
        with pytest.raises(RuntimeError, match=r"size mismatch for scalar_mix_0\.gamma"):
            elmo.load_state_dict(wrong)
        assert_same(vectors(elmo), before, rtol=0, atol=0)

    def test_a_part_has_its_names_too(self, files):
        encoder = _ElmoCharacterEncoder(*files)
        assert {"_char_embedding_weights", "char_conv_2.weight", "_projection.bias"} < set(encoder.state_dict())
        encoder.load_state_dict(_ElmoBiLm(*files)._token_embedder.state_dict(), strict=True)

    def test_training_moves_what_is_saved(self, files):
        elmo = Elmo(*files, 1, requires_grad=True, dropout=0)
        before = {key: value.clone() for key, value in elmo.state_dict().items()}
        optimizer = torch.optim.SGD(elmo.parameters(), lr=0.1)
        elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].square().sum().backward()
        optimizer.step()
        changed = {key for key, value in elmo.state_dict().items() if not torch.equal(value, before[key])}
        assert changed == set(before)

    def test_the_bilm_is_frozen_unless_asked_and_the_mixes_learn(self, files):
        elmo = Elmo(*files, 2)
        learning = [name for name, parameter in elmo.named_parameters() if parameter.requires_grad]
        assert learning == [f"scalar_mix_{k}.{part}" for k in range(2) for part in ("weights", "gamma")]
        assert all(parameter.requires_grad for parameter in Elmo(*files, 1, requires_grad=True).parameters())


class TestState:
    def test_without_asking_a_sentence_always_has_the_same_vectors(self, files):
        elmo = Elmo(*files, 1)
        first = vectors(elmo)
        vectors(elmo, [["other", "text"]])
        assert_same(vectors(elmo), first, rtol=0, atol=0)
        assert elmo._elmo_lstm._elmo_lstm._states is None

    @pytest.mark.parametrize(
        "reset",
        [
            lambda elmo: elmo.reset_states(),
            lambda elmo: elmo._elmo_lstm._elmo_lstm.reset_states(),
            lambda elmo: elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True, True, True])),
        ],
        ids=["new", "old", "old, by rows"],
    )
    def test_carried_on_request_and_reset(self, files, reset):
        elmo = Elmo(*files, 1, stateful=True)
        first, second = vectors(elmo), vectors(elmo)
        assert (first[0] - second[0]).abs().max() > 1e-3
        assert_same(first, vectors(Elmo(*files, 1)))
        embedder = Embedder(load_weights(files))
        state = embedder.warm_state(SENTENCES)
        expected, _ = embedder.embed(SENTENCES, state=state)
        np.testing.assert_allclose(second[0][0], expected[0], rtol=1e-5, atol=2e-6)
        reset(elmo)
        assert_same(vectors(elmo), first)

    def test_marked_rows_alone_are_reset(self, files):
        elmo = Elmo(*files, 1, stateful=True)
        fresh, lstm = vectors(elmo, [["a"], ["b"]]), elmo._elmo_lstm._elmo_lstm
        lstm.reset_states(torch.tensor([False, True]))
        again = vectors(elmo, [["a"], ["b"]])[0]
        assert_same([again[1]], [fresh[0][1]])
        assert (again[0] - fresh[0][0]).abs().max() > 1e-3
        with pytest.raises(InputError, match="2 rows are carried"):
            lstm.reset_states(torch.tensor([True]))

    def test_the_state_is_not_saved(self, files):
        elmo = Elmo(*files, 1, stateful=True)
        keys = set(elmo.state_dict())
        vectors(elmo)
        assert set(elmo.state_dict()) == keys

    def test_the_old_switch_turns_it_on_and_off(self, files):
        elmo = Elmo(*files, 1)
        elmo._elmo_lstm._elmo_lstm.stateful = True
        first = vectors(elmo)
        assert (first[0] - vectors(elmo)[0]).abs().max() > 1e-3
        elmo._elmo_lstm._elmo_lstm.stateful = False
        assert_same(vectors(elmo), first)


class TestCopies:
    def test_copies_and_pickles_stand_alone(self, files):
        elmo = trained(Elmo(*files, 2, stateful=True))
        first = vectors(elmo)
        for other in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
            other.reset_states()
            assert_same(vectors(other), first)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            other.load_state_dict(elmo.state_dict(), strict=True)
            other.reset_states()
            assert_same(vectors(other), first)
        elmo.reset_states()
        assert_same(vectors(elmo), first)

    def test_a_replica_uses_its_own_tensors(self, files):
        """What DataParallel does for each GPU: modules copied without constructors, parameters as plain tensors."""
        elmo = Elmo(*files, 2).eval()
        expected = vectors(elmo)
        replica = replicated(elmo, lambda tensor: tensor * 1.0)
        assert not list(replica.parameters())
        assert_same(vectors(replica), expected)
        silent = replicated(elmo, torch.zeros_like)
        assert not any(found.any() for found in vectors(silent))

    def test_data_parallel_runs_it(self, files):
        elmo = Elmo(*files, 1)
        assert_same(vectors(nn.DataParallel(elmo)), vectors(elmo))


def replicated(module, tensor_of):
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicated(child, tensor_of)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            setattr(replica, name, tensor_of(parameter.detach()))
    return replica


class TestAddresses:
    """Old code has the published addresses in it: they stand for what was fetched."""

    PUBLISHED = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_"

    @pytest.fixture(autouse=True)
    def home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("ELMOFIRE_HOME", str(tmp_path / "home"))
        return tmp_path / "home"

    @pytest.mark.parametrize("name", ["original", "original-lm"])
    def test_the_fetched_copy_is_used(self, files, home, name):
        folder = home / "allenai" / name
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        if name == "original-lm":
            with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
                file["softmax/W"], file["softmax/b"] = np.zeros((3, load_weights(files).config.projection)), np.zeros(3)
            (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
        expected = vectors(Elmo(*files, 1))
        assert_same(vectors(Elmo(f"{self.PUBLISHED}options.json", f"{self.PUBLISHED}weights.hdf5", 1)), expected)
        embedder = ElmoTokenEmbedder()  # whose defaults are the other mirror's
        assert_same([embedder.eval()(batch_to_ids(SENTENCES))], expected)

    def test_what_is_not_here_names_the_command_that_fetches_it(self, files):
        with pytest.raises(
            ModelError, match=r"is allenai/original in the cat.*\nhint: .*elmofire models get allenai/original$"
        ):
            ElmoTokenEmbedder()
        with pytest.raises(ModelError, match=r"elmofire models get allenai/pt$"):
            Elmo(files[0], "http://allennlp.s3.amazonaws.com/models/elmo/contributed/pt/elmo_pt_weights.hdf5", 1)

    def test_others_are_to_be_downloaded_by_hand(self, files):
        with pytest.raises(ModelError, match=r"is an address that is not in the catalogue\nhint: download the files"):
            Elmo("https://example.org/options.json", files[1], 1)


class TestMistakes:
    def test_they_are_named(self, files, tmp_path):
        with pytest.raises(InputError, match="both needed"):
            Elmo(None, files[1], 1)
        with pytest.raises(ModelError, match="no such file"):
            Elmo(tmp_path / "options.json", files[1], 1)
        with pytest.raises(InputError, match=r"\(2, 3, 13\), but should have \(sentences, tokens, 50\)"):
            Elmo(*files, 1)(torch.ones(2, 3, 13, dtype=torch.long))
        with pytest.raises(InputError, match=r"\(3, 50\), but should have \(sentences, \.\., tokens, 50\)"):
            Elmo(*files, 1)(batch_to_ids([["a", "b", "c"]])[0])
        for module in (Elmo(*files, 1), ElmoTokenEmbedder(*files), _ElmoBiLm(*files), _ElmoCharacterEncoder(*files)):
            with pytest.raises(InputError, match=r"the input is list, .*\nhint: batch_to_ids\(sentences\)"):
                module([["a", "b"]])
        ids = batch_to_ids([["a", "b", "c"]])
        ids[0, 1] = 0
        with pytest.raises(InputError, match="padding stands between tokens"):
            Elmo(*files, 1)(ids)
        with pytest.raises(InputError, match="needs the mask"):
            ScalarMix(1, do_layer_norm=True)([torch.ones(1, 2, 3)])

    def test_a_mix_shows_its_parameters_one_by_one(self):
        mix = ScalarMix(3, initial_scalar_parameters=[0.1, 0.2, 0.3])
        assert [round(parameter.item(), 6) for parameter in mix.scalar_parameters] == [0.1, 0.2, 0.3]
        assert all(parameter.requires_grad for parameter in mix.parameters())
        mix.scalar_parameters[1].data.fill_(5.0)
        assert mix.state_dict()["scalar_parameters.1"].tolist() == [5.0]
