"""ELMoForManyLangs: its toy models give its own vectors, and every quirk of its files is followed."""

import io
import json
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import torch
from formats.torch_writers import (
    NETWORK,
    SYMBOLS,
    WORDS,
    drawn,
    manylangs_shapes,
    save,
    write_lexicon,
    write_manylangs,
)
from models import ENGINES, FIXTURES, embedder_on, needs_shared

from elmofire import ModelError, load_weights, save_weights
from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.formats.config import PUBLISHED_FILTERS
from elmofire.formats.published.from_torch import manylangs

TOYS = FIXTURES / "efml_toy"
LAYERS = {-2: "all", -1: "average", 0: 0, 1: 1, 2: 2}
SENTENCES = [["abc", "今a", "xyz", "\u3000"], ["é"], []]


def close(found, expected):
    assert found.shape == expected.shape
    assert np.all(np.abs(found - expected) <= 2e-6 + 1e-5 * np.abs(expected))


def toy(name):
    return load_weights(TOYS / name), json.loads((TOYS / name / "sentences.json").read_text())


@needs_shared
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["word_char", "char_only"])
class TestToyModels:
    @pytest.mark.parametrize("layer", LAYERS)
    def test_a_fresh_call_gives_their_vectors(self, name, engine, layer):
        weights, sentences = toy(name)
        vectors = embedder_on(engine, weights).embed(sentences, layers=LAYERS[layer])
        with h5py.File(TOYS / name / "expected.hdf5") as expected:
            for number, found in enumerate(vectors):
                close(found, expected[f"layer_{layer}/{number}"][()])

    def test_a_second_call_goes_on_from_the_state_of_the_first(self, name, engine):
        weights, sentences = toy(name)
        order = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
        ranked = [sentences[number] for number in order]
        elmo = embedder_on(engine, weights)
        first, state = elmo.embed(ranked, "all", elmo.zero_state())
        second, _ = elmo.embed(ranked, "all", state)
        with h5py.File(TOYS / name / "expected.hdf5") as expected:
            for number, found, before in zip(order, second, first, strict=True):
                close(found, expected[f"second_call_layer_-2/{number}"][()])
                assert np.abs(found - before).max() > 1e-3


@needs_shared
@pytest.mark.parametrize("name", ["word_char", "char_only"])
def test_a_toy_model_keeps_its_words_and_characters(name):
    weights, _ = toy(name)
    assert weights.vocabulary.words[:5] == ["<oov>", "<bos>", "<eos>", "<pad>", "the"]
    assert weights.alphabet.symbols[36] == "\u3000"
    assert weights.config.encoder.words == (9 if name == "word_char" else 0)
    assert weights.config.forget_bias == 0
    assert weights.source.format == "manylangs"
    assert weights.tokenizer.name == "plain"


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize(("words", "characters"), [(True, True), (False, True), (True, False)])
class TestEveryKindOfModel:
    def test_layer_0_is_their_formula(self, tmp_path, words, characters, legacy):
        """Word vector first, then filters, maximum, relu, highway with a carry gate; one projection over both."""
        folder = write_manylangs(tmp_path / "model", words=words, characters=characters, legacy=legacy)
        theirs = {k: v.numpy().astype(float) for k, v in torch.load(folder / "token_embedder.pkl").items()}
        found = embedder_on("numpy", load_weights(folder)).embed([["今abcabcabc", "é"]], layers=0, boundaries=True)[0]
        for row, token in enumerate(["<bos>", "今abcabc", "é", "<eos>"]):  # seven characters and two markers are read
            features = []
            if words:
                place = WORDS.index(token) if token in WORDS else WORDS.index("<oov>")
                features.append(theirs["word_emb_layer.embedding.weight"][place])
            if characters:
                spelled = [token] if token in WORDS[:4] else list(token)
                ids = [SYMBOLS.index(symbol) for symbol in ["<eow>", *spelled, "<bow>"]]
                ids += [SYMBOLS.index("<pad>")] * (9 - len(ids))
                read = theirs["char_emb_layer.embedding.weight"][ids]
                z = []
                for k, width in enumerate((1, 2, 4)):
                    weight, bias = theirs[f"convolutions.{k}.weight"], theirs[f"convolutions.{k}.bias"]
                    z.append(
                        np.max([np.einsum("ncw,wc->n", weight, read[t : t + width]) for t in range(10 - width)], 0)
                        + bias
                    )
                z = np.maximum(np.concatenate(z), 0)
                both = theirs["highways._layers.0.weight"] @ z + theirs["highways._layers.0.bias"]
                carried = 1 / (1 + np.exp(-both[15:]))
                features.append(carried * z + (1 - carried) * np.maximum(both[:15], 0))
            e = theirs["projection.weight"] @ np.concatenate(features) + theirs["projection.bias"]
            close(found[row], np.concatenate([e, e]).astype(np.float32))

    def test_all_layers_are_those_of_the_definition_on_both_engines(self, tmp_path, words, characters, legacy):
        weights = load_weights(write_manylangs(tmp_path / "model", words=words, characters=characters, legacy=legacy))
        for engine in ENGINES:
            for tokens, found in zip(SENTENCES, embedder_on(engine, weights).embed(SENTENCES, "all"), strict=True):
                ids = token_ids(["<bos>", *tokens, "<eos>"], weights.config, weights.vocabulary, weights.alphabet)
                expected = np.array(definition.layers(weights.config, weights.arrays, ids)[0], dtype=np.float32)
                close(found, expected[:, 1:-1])

    def test_saved_as_native_it_gives_the_same_vectors(self, tmp_path, words, characters, legacy):
        weights = load_weights(write_manylangs(tmp_path / "model", words=words, characters=characters, legacy=legacy))
        save_weights(weights, tmp_path / "native")
        again = load_weights(tmp_path / "native")
        assert again.config == weights.config
        assert again.tokenizer == weights.tokenizer
        for before, after in zip(
            *[embedder_on("numpy", each).embed(SENTENCES, "all") for each in (weights, again)], strict=True
        ):
            np.testing.assert_array_equal(after, before)


class TestNetworkConfig:
    def test_a_path_inside_the_folder_comes_first(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        (folder / "configs").mkdir()
        (folder / "net.json").rename(folder / "configs" / "net.json")
        (folder / "net.json").write_text("{}")
        (folder / "config.json").write_text('{"config_path": "configs/net.json"}')
        assert load_weights(folder).config.cells == 11

    @pytest.mark.parametrize(
        "path", ["net.json", "./net.json", "/no/such/net.json", "../net.json", "C:\\runs\\net.json"]
    )
    def test_then_the_base_name(self, tmp_path, path):
        folder = write_manylangs(tmp_path / "model")
        (tmp_path / "net.json").write_text('{"encoder": "of another model"}')
        (folder / "config.json").write_text(json.dumps({"config_path": path}))
        assert load_weights(folder).config.cells == 11

    @pytest.mark.parametrize("name", ["cnn_0_100_512_4096_sample.json", "cnn_50_100_512_4096_sample.json"])
    def test_then_what_came_with_their_package(self, tmp_path, name):
        """The sizes are known, so that the small arrays do not fit them: each is said to be too small."""
        folder = write_manylangs(tmp_path / "model")
        (folder / "config.json").write_text(json.dumps({"config_path": f"/users4/somebody/{name}"}))
        with pytest.raises(ModelError) as caught:
            load_weights(folder)
        said = str(caught.value)
        assert (
            f"projection.weight has the shape (6, 19), but should have (512, {100 + sum(n for _, n in PUBLISHED_FILTERS)})"
            in said
        )
        assert "forward_layer_0.input_linearity.weight has the shape (44, 6), but should have (16384, 512)" in said
        assert "char_emb_layer.embedding.weight has the shape (12, 5), but should have (12, 50)" in said

    def test_a_name_that_is_nowhere_is_an_error_with_advice(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        (folder / "net.json").unlink()
        with pytest.raises(ModelError, match=r"there is no net.json in the model\nhint: put the config"):
            load_weights(folder)

    @pytest.mark.parametrize(
        ("section", "reason"), [("encoder", "only 'elmo' is a biLM"), ("token_embedder", "does not run as published")]
    )
    def test_other_networks_are_refused_with_the_reason(self, tmp_path, section, reason):
        folder = write_manylangs(tmp_path / "model")
        (folder / "net.json").write_text(json.dumps(NETWORK | {section: NETWORK[section] | {"name": "lstm"}}))
        with pytest.raises(ModelError, match=rf"net.json: {section}.name is 'lstm'.*(?s:.)*{reason}"):
            load_weights(folder)

    def test_clips_of_0_and_null_clip_nothing(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        encoder = NETWORK["encoder"] | {"cell_clip": 0, "proj_clip": None}
        (folder / "net.json").write_text(json.dumps(NETWORK | {"encoder": encoder}))
        config = load_weights(folder).config
        assert (config.cell_clip, config.projection_clip) == (None, None)


class TestDictionaries:
    def test_the_order_of_lines_does_not_matter_but_the_ids_do(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        before = load_weights(folder)
        for name in ("char.dic", "word.dic"):
            lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
            (folder / name).write_text("".join(lines[::-1]), encoding="utf-8", newline="\r\n")
        after = load_weights(folder)
        assert after.alphabet.symbols == before.alphabet.symbols == SYMBOLS
        assert after.vocabulary.words == WORDS

    @pytest.mark.parametrize("blank", ["\u3000", " ", "\xa0", "", "\u2028"])
    def test_a_symbol_that_is_stripped_away_is_an_ideographic_space(self, tmp_path, blank):
        folder = write_manylangs(tmp_path / "model")
        write_lexicon(folder / "char.dic", [blank if symbol == "\u3000" else symbol for symbol in SYMBOLS])
        assert load_weights(folder).alphabet.symbols == SYMBOLS

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("é\t3\t4", "line 4 is 'é\\t3\\t4', but should be"),
            ("é\tthree", "line 4 is"),
            ("é\t-1", "line 4 is"),
            ("é\t12", "an id below 12"),
            ("é\t99999999999999999999", "an id below 12"),
            ("é\t2", "line 4 has the id 2, which 'c' has already"),
            ("a\t3", "line 4 has 'a', which stands there already"),
            ("é", "line 4 is 'é'"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path, line, said):
        folder = write_manylangs(tmp_path / "model")
        lines = (folder / "char.dic").read_text(encoding="utf-8").split("\n")
        lines[3] = line
        (folder / "char.dic").write_text("\n".join(lines), encoding="utf-8")
        with pytest.raises(ModelError) as caught:
            load_weights(folder)
        assert "char.dic" in str(caught.value)
        assert said in str(caught.value)

    def test_what_is_not_utf_8_is_named_with_its_line(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        (folder / "word.dic").write_bytes(b"<oov>\t0\n\xff\t1\n")
        with pytest.raises(ModelError, match=r"word.dic:2: is not utf-8"):
            load_weights(folder)

    @pytest.mark.parametrize(("file", "marker"), [("char.dic", "<eow>"), ("word.dic", "<bos>"), ("word.dic", "<oov>")])
    def test_a_marker_that_is_missing_is_named(self, tmp_path, file, marker):
        folder = write_manylangs(tmp_path / "model")
        symbols = SYMBOLS if file == "char.dic" else WORDS
        write_lexicon(folder / file, ["other" if symbol == marker else symbol for symbol in symbols])
        with pytest.raises(ModelError, match=rf"{file} lacks {marker}"):
            load_weights(folder)


@pytest.mark.parametrize("name", ["config.json", "char.dic", "word.dic", "token_embedder.pkl", "encoder.pkl"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_manylangs(tmp_path / "model")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"{name} is missing"):
        load_weights(folder)


def test_all_missing_files_are_named_at_once(tmp_path):
    folder = write_manylangs(tmp_path / "model")
    for name in ("config.json", "encoder.pkl"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match=r"config.json is missing\n.*encoder.pkl is missing"):
        load_weights(folder)


class TestClassifier:
    HEADS = {  # noqa: RUF012
        "softmax": {"hidden2tag.weight": (7, 6), "hidden2tag.bias": (7,)},
        "sampled": {"column_emb.weight": (7, 6), "column_bias.weight": (7, 1), "oov_column": (6, 1)},
    }

    @pytest.mark.parametrize("kind", list(HEADS))
    @pytest.mark.parametrize("words", [True, False])
    def test_a_matrix_over_words_is_the_head(self, tmp_path, kind, words):
        folder = write_manylangs(tmp_path / "model", words=words)
        arrays = drawn(self.HEADS[kind], 5)
        save(folder / "classifier.pkl", arrays)
        weights = load_weights(folder)
        weight, bias = list(arrays.values())[:2]
        assert weights.config.head == len(WORDS)
        np.testing.assert_array_equal(weights.arrays["head.weight"], weight)
        np.testing.assert_array_equal(weights.arrays["head.bias"], bias.reshape(-1))

    @pytest.mark.parametrize("kind", list(HEADS))
    def test_a_head_of_other_sizes_is_an_error(self, tmp_path, kind):
        folder = write_manylangs(tmp_path / "model")
        save(folder / "classifier.pkl", {name: array[:-1] for name, array in drawn(self.HEADS[kind]).items()})
        with pytest.raises(ModelError) as caught:
            load_weights(folder)
        for name in list(self.HEADS[kind])[:2]:
            assert f"classifier.pkl: {name} has the shape" in str(caught.value)

    def test_a_softmax_over_spelled_words_is_left_out_with_a_warning(self, tmp_path):
        folder = write_manylangs(tmp_path / "model")
        save(folder / "classifier.pkl", drawn({"M": (6, 3), "corr.weight": (7, 3), "oov_column": (6, 1)}))
        with pytest.warns(
            UserWarning, match=r"classifier.pkl is a softmax of a kind that is not known here, .* without a head"
        ):
            weights = load_weights(folder)
        assert weights.config.head == 0

    def test_a_head_without_its_words_is_left_out_with_a_warning(self, tmp_path):
        folder = write_manylangs(tmp_path / "model", words=False)
        save(folder / "classifier.pkl", drawn(self.HEADS["softmax"]))
        (folder / "word.dic").unlink()
        with pytest.warns(UserWarning, match=r"classifier.pkl has no word.dic beside it"):
            assert load_weights(folder).config.head == 0


def test_members_of_an_archive_are_read_like_a_folder(tmp_path):
    folder = write_manylangs(tmp_path / "model", legacy=True)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    with zipfile.ZipFile(packed) as archive:
        assert manylangs.recognizes_names(archive.namelist())
        found = manylangs.read_members(archive.namelist(), archive.open, "the archive")
    expected = load_weights(folder)
    assert found.config == expected.config
    assert found.vocabulary.words == expected.vocabulary.words
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_folder_of_something_else_is_not_recognized(tmp_path):
    assert not manylangs.recognizes(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert not manylangs.recognizes(tmp_path)


def test_half_precision_is_read_as_float32(tmp_path):
    folder = write_manylangs(tmp_path / "model")
    for file, shapes in manylangs_shapes().items():
        state = {name: torch.from_numpy(array) for name, array in drawn(shapes, 3).items()}
        torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, folder / file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = load_weights(folder)
        arrays = dict(weights.arrays)
    expected = torch.load(folder / "encoder.pkl")["forward_layer_1.state_projection.weight"].float().numpy()
    assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}
    np.testing.assert_array_equal(arrays["forward.1.weight_hr"], expected)
