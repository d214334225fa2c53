"""The layer that other models train: mixes, gradients, norms, boundaries, dropout."""

import math

import numpy as np
import pytest
import torch
from models import lively, tiny, words_only

from elmofire import BiLM, Elmo, Embedder, InputError, ScalarMix, save_weights
from elmofire.text.vocabulary import Vocabulary

SENTENCES = [["the", "cat", "sat"], ["why"], []]


def layer(**options):
    return Elmo(BiLM.from_weights(lively(tiny())), **{"dropout": 0.0, **options})


class TestMix:
    def test_a_mix_is_gamma_times_the_weighted_sum(self):
        mix = ScalarMix(3)
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([0.1, 0.3, 0.5]))
            mix.gamma.fill_(1.7)
        layers = torch.randn(3, 2, 4)
        shares = [math.exp(w) / sum(math.exp(v) for v in (0.1, 0.3, 0.5)) for w in (0.1, 0.3, 0.5)]
        torch.testing.assert_close(mix.shares.detach(), torch.tensor([0.269307, 0.328933, 0.401760]), rtol=0, atol=1e-6)
        expected = 1.7 * sum(share * layer for share, layer in zip(shares, layers, strict=True))
        torch.testing.assert_close(mix(list(layers)).detach(), expected)

    def test_what_is_given_is_fixed_and_the_rest_learns(self):
        def learning(mix):
            return [name for name, parameter in mix.named_parameters() if parameter.requires_grad]

        assert learning(ScalarMix(3)) == ["weights", "gamma"]
        assert learning(ScalarMix(3, weights=[0, 1, 2])) == ["gamma"]
        assert learning(ScalarMix(3, gamma=2.0)) == ["weights"]
        assert learning(ScalarMix(3, weights=[0, 1, 2], gamma=1.0)) == []

    def test_one_layer_can_be_chosen_by_its_weight(self):
        layers = list(torch.randn(3, 2, 4))
        torch.testing.assert_close(ScalarMix(3, weights=[-9e10, 1, -9e10])(layers).detach(), layers[1])

    def test_a_wrong_number_of_weights_or_layers_is_named(self):
        with pytest.raises(ValueError, match="2 weights for 3 layers"):
            ScalarMix(3, weights=[0.0, 1.0])
        with pytest.raises(ValueError, match="3 weights, but 2 layers"):
            ScalarMix(3)([torch.ones(1), torch.ones(1)])
        with pytest.raises(ValueError, match="layers is 0"):
            ScalarMix(0)

    def test_gradients_equal_finite_differences(self):
        mix = ScalarMix(3).double()
        layers = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

        def run(weights, gamma, *layers):
            return torch.func.functional_call(mix, {"weights": weights, "gamma": gamma}, (layers,))

        assert torch.autograd.gradcheck(run, (mix.weights, mix.gamma, *layers))


class TestElmo:
    def test_its_vectors_are_the_embedders(self):
        weights = lively(tiny())
        vectors = Embedder(weights).embed(SENTENCES)
        output = Elmo(BiLM.from_weights(weights), dropout=0.0)(SENTENCES)
        assert output.mask.tolist() == [[True, True, True], [True, False, False], [False] * 3]
        for row, expected in enumerate(vectors):
            found = output.representations[0][row].detach().numpy()
            np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-5, atol=2e-6)
            assert not found[len(expected) :].any()

    @pytest.mark.parametrize("layer_norm", [None, "allennlp", "bilm-tf"])
    @pytest.mark.parametrize(
        "options",
        [{"trainable": True}, {"trainable": True, "top_only": True}, {"trainable": True, "keep_boundaries": True}],
    )
    def test_gradients_equal_finite_differences(self, options, layer_norm):
        config = tiny(
            cells=3,
            projection=2,
            encoder_width=2,
            encoder_filters=((1, 2), (2, 2)),
            encoder_max_characters=6,
            encoder_character_dim=2,
        )
        elmo = Elmo(
            BiLM.from_weights(lively(config, seed=4)), representations=2, dropout=0.0, layer_norm=layer_norm, **options
        ).double()
        names = [name for name, parameter in elmo.named_parameters() if parameter.requires_grad]
        parameters = dict(elmo.named_parameters())
        rng = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for mix in elmo.mixes:
                mix.gamma.fill_(1.3)
                mix.weights.copy_(torch.randn(mix.weights.shape, generator=rng))
        ids = elmo.ids([["ab", "c"], ["d"]])

        def run(*values):
            output = torch.func.functional_call(elmo, dict(zip(names, values, strict=True)), (ids,))
            return (*output.representations,)

        # Every element where that is affordable, random directions elsewhere.
        full = layer_norm is None and "top_only" in options
        assert torch.autograd.gradcheck(run, tuple(parameters[name] for name in names), fast_mode=not full)

    def test_the_penalty_is_lambda_times_the_squared_weights_and_so_is_its_gradient(self):
        elmo = layer(representations=2).double()
        with torch.no_grad():
            elmo.mixes[0].weights.copy_(torch.tensor([1.0, 2.0, 3.0]))
            elmo.mixes[1].weights.copy_(torch.tensor([0.5, 0.0, -1.0]))
        penalty = elmo.penalty(0.1)
        assert penalty.item() == pytest.approx(0.1 * (14 + 1.25))
        penalty.backward()
        torch.testing.assert_close(elmo.mixes[0].weights.grad, 0.2 * elmo.mixes[0].weights.detach())

        for mix in elmo.mixes:
            for place in range(3):
                around = []
                for step in (1e-5, -1e-5):
                    with torch.no_grad():
                        mix.weights[place] += step
                        around.append(elmo.penalty(0.1).item())
                        mix.weights[place] -= step
                assert mix.weights.grad[place].item() == pytest.approx((around[0] - around[1]) / 2e-5, abs=1e-9)

    def test_a_head_is_left_behind(self, tmp_path):
        words = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat"])
        save_weights(lively(tiny(head=len(words)), vocabulary=words), tmp_path / "model")
        elmo = Elmo.load(tmp_path / "model", trainable=True, dropout=0.0)
        assert not [name for name in elmo.state_dict() if "head" in name]
        elmo(SENTENCES).representations[0].sum().backward()
        assert all(parameter.grad is not None for parameter in elmo.parameters())

    def test_the_bilm_is_frozen_unless_asked(self):
        frozen, trainable = layer(), layer(trainable=True)
        frozen(SENTENCES).representations[0].sum().backward()
        trainable(SENTENCES).representations[0].square().sum().backward()
        assert all(parameter.grad is None for parameter in frozen.bilm.parameters())
        assert frozen.mixes[0].weights.grad is not None
        assert all(
            parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in trainable.bilm.parameters()
        )

    def test_representations_learn_apart(self):
        elmo = layer(representations=2)
        output = elmo(SENTENCES)
        torch.testing.assert_close(output.representations[0], output.representations[1])
        output.representations[0].sum().backward()
        assert elmo.mixes[1].gamma.grad is None

    def test_dropout_falls_on_each_representation_in_training_only(self):
        elmo = layer(representations=2, dropout=0.5)
        one, other = elmo(SENTENCES).representations
        assert ((one == 0) != (other == 0)).any()
        elmo.eval()
        torch.testing.assert_close(elmo(SENTENCES).representations[0], layer().eval()(SENTENCES).representations[0])

    def test_top_only_is_the_top_layer_times_gamma(self):
        weights = lively(tiny())
        elmo = Elmo(BiLM.from_weights(weights), dropout=0.0, top_only=True, gamma=2.0)
        expected = Embedder(weights).embed(SENTENCES, layers="top")[0]
        np.testing.assert_allclose(elmo(SENTENCES).representations[0][0].detach(), 2 * expected, rtol=1e-5, atol=2e-6)
        assert elmo.penalty().item() == 0.0

    def test_boundaries_kept_stand_first_and_last(self):
        weights = lively(tiny())
        output = Elmo(BiLM.from_weights(weights), dropout=0.0, keep_boundaries=True)(SENTENCES)
        assert output.mask.sum(dim=1).tolist() == [5, 3, 2]
        for row, expected in enumerate(Embedder(weights).embed(SENTENCES, boundaries=True)):
            np.testing.assert_allclose(
                output.representations[0][row, : len(expected)].detach(), expected, rtol=1e-5, atol=2e-6
            )

    @pytest.mark.parametrize(("variant", "boundaries", "eps"), [("allennlp", True, 1e-13), ("bilm-tf", False, 1e-12)])
    def test_layer_norm_has_one_mean_and_variance_for_the_batch(self, variant, boundaries, eps):
        weights = lively(tiny())
        output = Elmo(BiLM.from_weights(weights), dropout=0.0, layer_norm=variant)(SENTENCES)
        counted = Embedder(weights).embed(SENTENCES, layers="all", boundaries=boundaries)
        inner = Embedder(weights).embed(SENTENCES, layers="all")
        normed = []
        for k in range(3):
            numbers = np.concatenate([vectors[k].ravel() for vectors in counted]).astype(np.float64)
            normed.append((inner[0][k] - numbers.mean()) / math.sqrt(numbers.var() + eps))
        np.testing.assert_allclose(output.representations[0][0].detach(), np.mean(normed, axis=0), rtol=1e-4, atol=1e-5)

    def test_ids_made_beforehand_give_the_same(self):
        elmo = layer()
        torch.testing.assert_close(elmo(elmo.ids(SENTENCES)).representations[0], elmo(SENTENCES).representations[0])

    def test_generators_and_tokens_with_their_places_are_fine(self):
        elmo, embedder = layer(), Embedder(lively(tiny()))
        expected = elmo(SENTENCES).representations[0]
        torch.testing.assert_close(elmo(iter(sentence) for sentence in SENTENCES).representations[0], expected)
        sentences = [embedder.tokenize(" ".join(sentence)) for sentence in SENTENCES]
        torch.testing.assert_close(elmo(sentences).representations[0], expected)

    def test_the_state_is_an_argument_and_a_result(self):
        elmo = layer()
        first = elmo([["the", "cat"]])
        second = elmo([["sat"]], state=first.state)
        assert not second.state.hidden.requires_grad
        embedder = Embedder(lively(tiny()))
        _, state = embedder.embed([["the", "cat"]], state=embedder.zero_state())
        expected, _ = embedder.embed([["sat"]], state=state)
        np.testing.assert_allclose(second.representations[0][0].detach(), expected[0], rtol=1e-5, atol=2e-6)

    def test_a_model_of_whole_words_is_a_layer_too(self):
        words = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat"])
        weights = lively(words_only(5), vocabulary=words)
        output = Elmo(BiLM.from_weights(weights), dropout=0.0)(SENTENCES)
        for row, expected in enumerate(Embedder(weights).embed(SENTENCES)):
            np.testing.assert_allclose(
                output.representations[0][row, : len(expected)].detach(), expected, rtol=1e-5, atol=2e-6
            )

    def test_mistakes_are_named(self):
        with pytest.raises(InputError, match="lists of tokens"):
            layer()(["a sentence"])
        ids = layer().ids([["a", "b", "c"]])
        ids[0, 1] = 0
        with pytest.raises(InputError, match="zeros stand between"):
            layer()(ids)
        for representations in (0, -1):
            with pytest.raises(ValueError, match=f"representations is {representations}"):
                layer(representations=representations)
        with pytest.raises(ValueError, match="layer_norm"):
            layer(layer_norm="per token")
        with pytest.raises(ValueError, match="top_only"):
            layer(top_only=True, mix_weights=[0, 0, 0])
        with pytest.raises(ValueError, match="different widths"):
            Elmo(BiLM.from_weights(lively(tiny(encoder_width=9))))

    @pytest.mark.parametrize(
        ("sentences", "said"),
        [
            ("a string", "one string was given"),
            (["a string"], "lists of tokens"),
            (7, "not int"),
            ({"a": 1}, "not dict"),
            ([["a", 5]], "token 1 of sentence 0 is int 5"),
            ([None], "sentence 0 is NoneType"),
        ],
    )
    def test_what_is_no_list_of_token_lists_is_named(self, sentences, said):
        with pytest.raises(InputError, match=said):
            layer()(sentences)

    def test_ids_of_another_kind_or_shape_are_named(self):
        elmo = layer()
        ids = elmo.ids(SENTENCES)
        for wrong in (ids.float(), ids[0], ids[:, :, :-1]):
            with pytest.raises(InputError, match=rf"integers of the shape \(sentences, tokens, {ids.shape[2]}\)"):
                elmo(wrong)

    def test_another_kind_of_state_is_named(self):
        with pytest.raises(InputError, match="state is State"):
            layer()([["a"]], state=Embedder(lively(tiny())).zero_state())

    def test_a_name_in_the_place_of_a_bilm_is_led_to_load(self):
        with pytest.raises(InputError, match=r"Elmo\('en-small'\): it is made of BiLM\nhint: Elmo\.load"):
            Elmo("en-small")
