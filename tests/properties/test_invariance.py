"""A vector depends on its sentence and on nothing else: not on batch, order, neighbors, padding, chunking, cache, threads or history."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import ENGINES, embedder_on, lively, tiny

from elmofire import Embedder
from elmofire.embed.cache import VectorCache
from elmofire.engine import Engine, recurrence
from elmofire.engine.batches import make_pool, token_ids
from elmofire.formats.config import small
from elmofire.model import torch_engine

CONFIG = tiny(
    cells=96, projection=24, encoder_width=24, encoder_filters=((1, 8), (2, 16), (3, 32)), encoder_max_characters=20
)
WEIGHTS = lively(CONFIG, seed=7)
TOKENS = st.text("abcdeé日 .", min_size=0, max_size=12)
SENTENCES = st.lists(st.lists(TOKENS, max_size=12), min_size=1, max_size=9)


def assert_same(found, expected):
    """Relative error per token of at most 5e-6, in every layer."""
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        error = np.linalg.norm(x - y, axis=-1)
        assert (error <= 5e-6 * np.linalg.norm(y, axis=-1)).all(), error.max()


def one_by_one(elmo, sentences):
    return [elmo.embed([sentence], layers="all")[0] for sentence in sentences]


def test_the_weights_are_lively():
    elmo = embedder_on("numpy", WEIGHTS)
    text = [f"the cat {n} sat on a mat while it rained".split() for n in range(20)]
    layers = np.concatenate(elmo.embed(text, layers="all"), axis=1)
    assert 0.7 < layers[0].std() < 1.4
    assert layers[2].std() >= 0.5
    assert (np.abs(elmo.warm_state(text).memory) == 3.0).any()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25, deadline=None)
@given(sentences=SENTENCES, batch_tokens=st.integers(1, 80), seed=st.integers(0, 9))
def test_batch_size_order_and_neighbors_do_not_matter(engine, sentences, batch_tokens, seed):
    elmo = embedder_on(engine, WEIGHTS)
    expected = one_by_one(elmo, sentences)
    elmo.batch_tokens = batch_tokens
    assert_same(elmo.embed(sentences, layers="all"), expected)
    order = np.random.default_rng(seed).permutation(len(sentences))
    shuffled = elmo.embed([sentences[n] for n in order], layers="all")
    assert_same(shuffled, [expected[n] for n in order])
    assert_same([vectors for _, vectors in elmo.stream(iter(sentences), layers="all")], expected)


@settings(max_examples=25, deadline=None)
@given(sentences=SENTENCES)
def test_padding_never_reaches_a_token(sentences):
    elmo = embedder_on("numpy", WEIGHTS)
    ragged = elmo.embed(sentences)
    array, mask = elmo.embed(sentences, padded=True)
    assert mask.sum(axis=1).tolist() == [len(sentence) for sentence in sentences]
    for row, vectors in enumerate(ragged):
        np.testing.assert_array_equal(array[row][mask[row]], vectors)
    assert not array[~mask].any()


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_mixed_vectors_are_the_layers_mixed(engine, boundaries):
    sentences = [[f"w{n}", "x"] * (n % 7) for n in range(20)]
    elmo = embedder_on(engine, WEIGHTS)
    layers = elmo.embed(sentences, layers="all", boundaries=boundaries)
    powers = np.exp(np.array([0.3, -1.0, 2.0]) - 2.0)
    shares = (powers / powers.sum()).tolist()
    for choice, mixed in [
        (1, lambda found: found[1]),
        ("top", lambda found: found[2]),
        ([0.3, -1.0, 2.0], lambda found: found[0] * shares[0] + found[1] * shares[1] + found[2] * shares[2]),
    ]:
        vectors = elmo.embed(sentences, layers=choice, boundaries=boundaries)
        for one, found in zip(vectors, layers, strict=True):
            np.testing.assert_array_equal(one, mixed(found))


@pytest.mark.parametrize("engine", ENGINES)
def test_long_sequences_in_windows_are_exact(engine, monkeypatch):
    rng = np.random.default_rng(0)
    sentences = [[str(n) for n in rng.integers(0, 50, length)] for length in (700, 33, 3)]
    elmo = embedder_on(engine, WEIGHTS)
    expected = elmo.embed(sentences, layers="all")
    assert_same(one_by_one(elmo, sentences), expected)
    monkeypatch.setattr(recurrence, "_WINDOW_ROWS", 5)
    monkeypatch.setattr(torch_engine, "_WINDOW_ROWS", 20)
    monkeypatch.setattr(torch_engine, "_LEAST_ROWS", 1)
    assert_same(elmo.embed(sentences, layers="all"), expected)


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine in ("torch", "cuda")])
def test_a_sentence_that_leaves_the_device_window_by_window_is_exact(engine, boundaries, monkeypatch):
    rng = np.random.default_rng(0)
    sentences = [[str(n) for n in rng.integers(0, 50, length)] for length in (7, 700, 101, 33)]
    elmo = embedder_on(engine, WEIGHTS)
    whole = {layers: elmo.embed(sentences, layers=layers, boundaries=boundaries) for layers in ("all", "average", 0)}
    after = elmo.embed(sentences[1:2], state=elmo.zero_state())[1]
    monkeypatch.setattr(torch_engine, "_LONG_STEPS", 100)
    monkeypatch.setattr(torch_engine, "_WINDOW_ROWS", 64 * 30)
    elmo.batch_tokens = 100  # so that none of these shares its pool with another
    for layers, expected in whole.items():
        assert_same(elmo.embed(sentences, layers=layers, boundaries=boundaries), expected)
    vectors, state = elmo.embed(sentences[1:2], state=elmo.zero_state())
    assert vectors[0].shape == (700, 48)
    np.testing.assert_allclose(state.hidden, after.hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.memory, after.memory, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(first=SENTENCES, second=SENTENCES, limit=st.sampled_from([0, 600, 5000, 1 << 20]))
def test_neither_the_cache_nor_earlier_calls_matter(first, second, limit):
    fresh = embedder_on("numpy", WEIGHTS).embed(second, layers="all")
    elmo = embedder_on("numpy", WEIGHTS)
    elmo._cache = VectorCache(limit)
    elmo.embed(first)
    assert_same(elmo.embed(second, layers="all"), fresh)
    assert elmo._cache.used <= limit


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_inside_do_not_matter(threads):
    sentences = [[f"w{n}", "x"] * (n % 7 + 1) for n in range(40)]
    expected = one_by_one(Embedder(WEIGHTS, device="cpu", threads=1), sentences)
    elmo = Embedder(WEIGHTS, device="cpu", threads=threads)
    elmo.batch_tokens = 50
    assert_same(elmo.embed(sentences, layers="all"), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_embedder_serves_several_threads(engine):
    batches = [[[f"w{n}-{k}", "shared"] * 3 for k in range(5)] for n in range(24)]
    elmo = embedder_on(engine, WEIGHTS)
    elmo._cache = VectorCache(3000)  # full all the time, so that threads also throw each other's words out
    expected = [embedder_on(engine, WEIGHTS).embed(batch, layers="all") for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        for found, wanted in zip(
            pool.map(lambda batch: elmo.embed(batch, layers="all"), batches), expected, strict=True
        ):
            assert_same(found, wanted)


@settings(max_examples=20, deadline=None)
@given(tokens=st.lists(TOKENS, min_size=1, max_size=10))
def test_reversing_a_sequence_and_swapping_the_stacks_swaps_the_halves(tokens):
    swapped = {"forward": "backward", "backward": "forward"}
    arrays = {
        ".".join([swapped.get(name.split(".")[0], name.split(".")[0]), *name.split(".")[1:]]): array
        for name, array in WEIGHTS.arrays.items()
    }
    ids = token_ids(["<S>", *tokens, "</S>"], CONFIG, None, WEIGHTS.alphabet)
    places = np.arange(len(ids))

    def run(engine, order):
        pool = make_pool([order], np.array([0]))
        return np.stack(next(engine.run(engine.encode(ids), [pool])))

    straight = run(Engine(WEIGHTS), places)
    mirrored = run(Engine(type(WEIGHTS)(config=CONFIG, arrays=arrays)), places[::-1].copy())
    forward, backward = np.split(mirrored[:, ::-1], 2, axis=2)
    assert_same(np.concatenate([backward, forward], axis=2), straight)


def test_two_processes_give_the_same_bytes():
    program = (
        "import sys; from elmofire import Embedder; "
        "elmo = Embedder.load('random-small'); "
        "sentences = [[f'w{n}', 'cat', 'sat'] * (n % 9) for n in range(50)]; "
        "sys.stdout.buffer.write(b''.join(v.tobytes() for v in elmo.embed(sentences, layers='all')))"
    )
    digests = {
        hashlib.sha256(
            subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        ).hexdigest()
        for _ in range(2)
    }
    assert len(digests) == 1


def test_the_small_size_is_as_steady():
    weights = lively(small(), seed=1)
    sentences = [["Stick", "to", "the", "plan"], ["Why", "?"], [f"w{n}" for n in range(40)]]
    expected = one_by_one(embedder_on("numpy", weights), sentences)
    assert_same(embedder_on("numpy", weights).embed(sentences, layers="all"), expected)
    assert_same(embedder_on("torch", weights).embed(sentences, layers="all"), expected)
