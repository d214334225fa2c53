"""What task models read of tokens: places in batches, word tables, characters, cached layers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import lively, tiny
from torch.nn.utils.rnn import pack_sequence

from elmofire import DataError, Embedder
from elmofire.tasks.features import FlatText, Spellings, glove_vectors, read_layers, scaled_layers, write_layers
from elmofire.tasks.layers import CharacterCnn
from elmofire.text.characters import character_ids

SENTENCES = [["The", "cat", "sat"], ["It", "slept"], ["Why", "did", "the", "cat", "sleep", "?"]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_batch_is_laid_out_as_torch_packs_it(lengths, random):
    text = FlatText([["word"] * length for length in lengths])
    numbers = list(range(len(lengths)))
    random.shuffle(numbers)
    numbers = np.array(numbers[: random.randint(1, len(numbers))])
    batch = text.batch(numbers)
    assert sorted(batch.sentences) == sorted(numbers)
    places = [torch.arange(text.starts[n], text.starts[n] + lengths[n]) for n in batch.sentences]
    packed = pack_sequence(places)
    assert batch.places.tolist() == packed.data.tolist()
    assert batch.sizes.tolist() == packed.batch_sizes.tolist()
    padded = np.full(batch.shape, -1)
    padded.flat[batch.cells] = batch.places
    for row, expected in zip(padded, places, strict=True):
        assert row.tolist() == expected.tolist() + [-1] * (batch.shape[1] - len(expected))


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.npz"
    words = np.frombuffer(b"the\ncat\nnever", dtype=np.uint8)
    np.savez(path, words=words, vectors=np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float16))
    return path


def test_words_share_a_vector_in_lower_case_and_rare_unknown_ones_share_another(glove):
    text = FlatText([["The", "CAT", "12", "Zyx", "once"], ["the", "34", "zyX"], ["56", "unseen", "123", "cat"]])
    rows, table, given = glove_vectors(glove, text, training=8, seed=1)
    the, cat, number, zyx, once = rows[:5].tolist()
    assert rows[5:].tolist() == [the, number, zyx, number, once, once, cat]
    assert len({the, cat, number, zyx, once}) == len(table) == 5
    assert table[[the, cat]].tolist() == [[1, 2], [3, 4]]
    assert np.flatnonzero(given).tolist() == sorted([the, cat])
    assert np.unique(table).size == table.size  # nobody has the zero vector, or another's


def test_vectors_that_are_not_given_follow_the_seed(glove):
    text = FlatText([["x"] * 2 + ["the"]])
    first, again, other = (glove_vectors(glove, text, training=3, seed=seed).table for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first[0] != other[0]).all()
    assert first[2].tolist() == other[2].tolist() == [1, 2]


def test_word_vectors_that_cannot_be_read_are_said(tmp_path, glove):
    (tmp_path / "text.npz").write_text("not numbers")
    np.savez(tmp_path / "other.npz", vectors=np.zeros((2, 2)))
    np.savez(tmp_path / "short.npz", words=np.frombuffer(b"a", dtype=np.uint8), vectors=np.zeros((2, 2)))
    for name, message in [("text", "is not an .npz file"), ("other", "`words`"), ("short", "1 words, but 2 vectors")]:
        with pytest.raises(DataError, match=message):
            glove_vectors(tmp_path / f"{name}.npz", FlatText([["a"]]), training=1, seed=1)


def test_characters_are_cut_to_the_longest_word_and_give_the_same_vectors():
    tokens = ["a", "characters", "Ünï", "a", "x" * 80]
    spellings = Spellings(tokens, "cpu")
    places = np.array([3, 1, 2])
    ids = spellings.at(places, torch.from_numpy(places))
    whole = torch.from_numpy(character_ids([tokens[place] for place in places]))
    assert ids.shape == (3, 12)
    assert (ids == whole[:, :12]).all()
    cnn = CharacterCnn()
    torch.testing.assert_close(cnn(ids), cnn(whole))
    assert spellings.at(np.array([4]), torch.tensor([4])).shape == (1, 50)


def test_words_without_characters_have_a_vector_too():
    spellings, cnn = Spellings(["", "", "cat"], "cpu"), CharacterCnn()
    ids = spellings.at(np.array([0, 1]), torch.tensor([0, 1]))
    assert ids.shape == (2, 2)
    torch.testing.assert_close(cnn(ids), cnn(torch.from_numpy(character_ids(["", ""]))))
    both = spellings.at(np.array([0, 2]), torch.tensor([0, 2]))
    torch.testing.assert_close(cnn(both)[0], cnn(ids)[0])


def test_the_character_cnn_is_a_convolution_over_each_word_alone():
    cnn = CharacterCnn(character_dim=3, filters=5, width=3)
    weight = cnn.convolution.weight.reshape(5, 3, 3)  # (filters, character_dim, width)
    for word in ["a", "cats", "Ünïcode"]:
        ids = torch.from_numpy(character_ids([word]))
        inside = ids[:, : len(word.encode()) + 2]
        slow = torch.conv1d(cnn.characters(inside).transpose(1, 2), weight, cnn.convolution.bias)
        torch.testing.assert_close(cnn(ids), slow.relu().amax(dim=2))


def test_cached_layers_are_those_of_the_embedder(tmp_path):
    embedder, text = Embedder.load("random-small", device="cpu", threads=1), FlatText(SENTENCES)
    write_layers(tmp_path / "layers.safetensors", embedder, text, model="random-small")
    stored = read_layers(tmp_path / "layers.safetensors", text, model="random-small")
    assert stored.shape == (11, 3, 256)
    for start, vectors in zip(text.starts, embedder.embed(SENTENCES, layers="all"), strict=True):
        np.testing.assert_allclose(
            stored[start : start + vectors.shape[1]], vectors.swapaxes(0, 1), rtol=1e-3, atol=1e-6
        )


@pytest.fixture(scope="module")
def tiny_embedder() -> Embedder:
    return Embedder(lively(tiny()), device="cpu", threads=1)


def test_layers_of_other_sentences_are_refused(tmp_path, tiny_embedder):
    path = tmp_path / "layers.safetensors"
    write_layers(path, tiny_embedder, FlatText(SENTENCES), model="tiny")
    other = FlatText([SENTENCES[0] + SENTENCES[1], SENTENCES[2]])  # the same tokens
    with pytest.raises(DataError, match="does not hold layers of these 2 sentences"):
        read_layers(path, other, model="tiny")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([["New York", "."]], [["New", "York ."]]),
        ([["a\n", "b"]], [["a", "\nb"]]),
        ([["a\xff", "b"]], [["a", "\xffb"]]),
        ([["a"], [""]], [["a", ""]]),
        ([["a", ""]], [["", "a"]]),
        ([["\ud800", "b"]], [["\ud801", "b"]]),
    ],
)
def test_no_spelling_of_tokens_makes_other_sentences_look_the_same(tmp_path, tiny_embedder, one, other):
    path = tmp_path / "layers.safetensors"
    text = FlatText(one)
    layers = np.zeros((len(text.tokens), 3, 12), dtype=np.float32)
    given = GivenLayers(tiny_embedder.config, one, layers)
    write_layers(path, given, text, model="tiny")  # type: ignore[arg-type]
    assert read_layers(path, text, model="tiny").shape == layers.shape
    with pytest.raises(DataError, match="does not hold layers"):
        read_layers(path, FlatText(other), model="tiny")


class GivenLayers:
    """Stands for an embedder, which would refuse some of the tokens."""

    def __init__(self, config, sentences, layers):
        self.config, self.sentences, self.layers = config, sentences, layers

    def stream(self, _sentences, layers):
        assert layers == "all"
        yield self.sentences, self.layers.swapaxes(0, 1)


def test_layers_of_another_model_are_refused(tmp_path, tiny_embedder):
    path, text = tmp_path / "layers.safetensors", FlatText(SENTENCES)
    write_layers(path, tiny_embedder, text, model="one in float32")
    with pytest.raises(DataError, match="of the model one in float32, not one in int8"):
        read_layers(path, text, model="one in int8")


@pytest.mark.parametrize("constant", [0.0, 5.0, 40.0])
def test_layers_are_equally_loud_in_training_whatever_all_their_vectors_have_in_common(constant):
    rng = np.random.default_rng(1)
    loudness = np.array([[[1], [0.01], [3]]])
    stored = (loudness * (rng.normal(0, 1, (500, 3, 8)) + constant * rng.normal(0, 1, (3, 8)))).astype(np.float16)
    scaled = scaled_layers(stored, [2, 1], training=300, device="cpu")
    assert scaled.dtype == torch.float16
    for layer, number in enumerate([2, 1]):
        own = stored[:, number].astype(np.float64)
        own -= own[:300].mean(axis=0)
        own /= np.sqrt(np.mean(own[:300] ** 2))
        np.testing.assert_allclose(scaled[:, layer].double().numpy(), own, rtol=2e-3, atol=1e-4)


def test_tokens_behind_the_training_ones_do_not_change_how_loud_layers_are():
    stored = np.random.default_rng(1).normal(1, 1, (500, 2, 8)).astype(np.float16)
    changed = stored.copy()
    changed[300:] *= 3
    whole, other = (scaled_layers(one, [0, 1], training=300, device="cpu") for one in (stored, changed))
    assert torch.equal(whole[:300], other[:300])
    assert not torch.equal(whole[300:], other[300:])
