"""Threads change nothing but the time: not the vectors, not their order, and they are there in a forked process too."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from models import lively, tiny

from elmofire.engine import Engine, recurrence, workers
from elmofire.engine.batches import make_pools, token_ids
from elmofire.engine.compiled import library, packing
from elmofire.engine.compiled.companion import Companion
from elmofire.formats.config import HIGHWAYS

CONFIG = tiny(cells=40, projection=12, encoder_width=12)
WEIGHTS = lively(CONFIG, seed=4)
TOKENS = [f"w{n}" for n in range(90)]


def results(engine, depth=None):
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, len(TOKENS), length) for length in rng.integers(1, 30, 40)]
    vectors = engine.encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
    return [np.concatenate(layers, axis=1) for layers in engine.run(vectors, make_pools(sentences, 60), depth=depth)]


@pytest.fixture(autouse=True)
def everything_is_worth_a_thread(monkeypatch):
    monkeypatch.setattr("elmofire.engine._WORDS_WORTH_A_THREAD", 1)
    monkeypatch.setattr("elmofire.engine._FEW_WORDS", 0)


@pytest.mark.parametrize("instruction_set", ["numpy", *library.available()])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_pools_in_order(instruction_set, threads):
    expected = results(Engine(WEIGHTS, threads=1, instruction_set=instruction_set))
    found = results(Engine(WEIGHTS, threads=threads, instruction_set=instruction_set))
    assert len(found) == len(expected) > 5
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("instruction_set", library.available())
@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
def test_compiled_kernels_give_the_same_bits_whatever_the_threads(instruction_set, precision):
    settings = {"precision": precision, "instruction_set": instruction_set}
    for x, y in zip(
        results(Engine(WEIGHTS, threads=1, **settings)), results(Engine(WEIGHTS, threads=4, **settings)), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def handed_over(monkeypatch):
    """The pairs of calls that an engine has made by way of its companion."""
    pairs, plain = [], Companion._both
    monkeypatch.setattr(Companion, "_both", lambda self, *pair: pairs.append(pair) or plain(self, *pair))
    return pairs


@pytest.mark.parametrize("instruction_set", library.available())
@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
@pytest.mark.parametrize("highway", HIGHWAYS)
def test_few_words_are_encoded_by_two_threads_that_share_each_product(
    monkeypatch, handed_over, instruction_set, precision, highway
):
    monkeypatch.setattr("elmofire.engine._FEW_WORDS", len(TOKENS))
    config = tiny(cells=40, projection=12, encoder_width=12, encoder_highway=highway)
    weights = lively(config, seed=5)
    ids = token_ids(TOKENS, config, None, weights.alphabet)
    settings = {"precision": precision, "instruction_set": instruction_set}
    expected = Engine(weights, threads=1, **settings).encode(ids)
    assert not handed_over
    engine = Engine(weights, threads=2, **settings)
    for _ in range(20):
        np.testing.assert_array_equal(engine.encode(ids), expected)
    kernels = {pair[0].kernel.number for pair in handed_over}
    assert kernels >= ({0} if len(HIGHWAYS[highway]) > 1 else set())
    assert len(handed_over) % 20 == 0


@pytest.mark.parametrize("instruction_set", library.available())
@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
def test_directions_of_a_short_pool_keep_step_and_give_the_same_bits(handed_over, instruction_set, precision):
    settings = {"precision": precision, "instruction_set": instruction_set}
    alone, engine = Engine(WEIGHTS, threads=1, **settings), Engine(WEIGHTS, threads=2, **settings)
    vectors = alone.encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
    rng = np.random.default_rng(3)
    for length in (1, 2, 17, 40):
        pools = make_pools([rng.integers(0, len(TOKENS), length), rng.integers(0, len(TOKENS), 5)], 1000)
        for x, y in zip(next(alone.run(vectors, pools)), next(engine.run(vectors, pools)), strict=True):
            np.testing.assert_array_equal(x, y)
    assert len(handed_over) == 4 * CONFIG.layers


@pytest.mark.skipif(not library.available(), reason="no compiled kernels on this machine")
def test_whoever_finds_the_companion_taken_makes_both_calls():
    """Several threads embed short pools with one engine; each gets what it would alone."""
    alone, engine = Engine(WEIGHTS, threads=1), Engine(WEIGHTS, threads=2)
    vectors = alone.encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
    rng = np.random.default_rng(4)
    pools = [make_pools([rng.integers(0, len(TOKENS), 20)], 1000) for _ in range(60)]
    expected = [np.concatenate(next(alone.run(vectors, pool)), axis=1) for pool in pools]
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda pool: np.concatenate(next(engine.run(vectors, pool)), axis=1), pools))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.skipif(not library.available(), reason="no compiled kernels on this machine")
def test_without_a_thread_for_the_companion_the_caller_makes_all_calls(monkeypatch, handed_over):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    engine = Engine(WEIGHTS, threads=2)
    vectors = Engine(WEIGHTS, threads=1).encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
    pools = make_pools([np.arange(9)], 1000)
    expected = next(Engine(WEIGHTS, threads=1).run(vectors, pools))
    for x, y in zip(next(engine.run(vectors, pools)), expected, strict=True):
        np.testing.assert_array_equal(x, y)
    assert handed_over


@pytest.mark.parametrize("instruction_set", library.available())
@pytest.mark.parametrize("precision", ["float32", "int16", "int8"])
def test_compiled_kernels_give_a_sentence_the_same_bits_whatever_its_batch(monkeypatch, instruction_set, precision):
    monkeypatch.setattr(packing, "_MANY_ROWS", 3)  # so that input gates are stored in some windows, and not in others
    engine = Engine(WEIGHTS, precision=precision, instruction_set=instruction_set)
    rng = np.random.default_rng(1)
    sentences = [rng.integers(0, len(TOKENS), length) for length in (30, 11, 11, 5, 4, 2, 1)]
    ids = token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet)
    vectors = engine.encode(ids)
    np.testing.assert_array_equal(np.concatenate([engine.encode(ids[n : n + 1]) for n in range(len(ids))]), vectors)
    for rows in (2048, 7, 1):
        monkeypatch.setattr(recurrence, "_WINDOW_ROWS", rows)
        pool = make_pools(sentences, 1000)[0]
        together = np.concatenate(next(iter(engine.run(vectors, [pool]))), axis=1)
        for b, number in enumerate(pool.sentences):
            alone = make_pools(sentences, 1000, np.array([number]))
            np.testing.assert_array_equal(
                np.concatenate(next(iter(engine.run(vectors, alone))), axis=1), together[pool.rows_of(b)]
            )


@pytest.mark.parametrize("depth", [0, 1])
def test_less_depth_gives_the_first_layers_of_the_same_run(depth):
    engine = Engine(WEIGHTS, threads=2)
    for x, y in zip(results(engine, depth), results(engine), strict=True):
        np.testing.assert_array_equal(x, y[:, : x.shape[1]])
        assert x.shape[1] == sum(CONFIG.layer_widths[: depth + 1])


def test_an_error_in_a_thread_reaches_the_caller_and_ends_the_rest():
    engine = Engine(WEIGHTS, threads=2)
    pools = make_pools([np.array([0, 1, 2])] * 9, 3)
    broken = [*pools[:3], pools[3].__class__(**{**pools[3].__dict__, "tokens": np.array([0, 99, 0])}), *pools[4:]]
    vectors = engine.encode(token_ids(TOKENS[:3], CONFIG, None, WEIGHTS.alphabet))
    found = []
    with pytest.raises(IndexError):
        found.extend(engine.run(vectors, broken))
    assert len(found) == 3
    assert len(list(engine.run(vectors, pools))) == 9


def test_whoever_stops_reading_stops_the_run():
    engine = Engine(WEIGHTS, threads=2)
    asked = []

    def pools():
        for pool in make_pools([np.array([0, 1, 2])] * 50, 3):
            asked.append(pool)
            yield pool

    vectors = engine.encode(token_ids(TOKENS[:3], CONFIG, None, WEIGHTS.alphabet))
    run = engine.run(vectors, pools())
    next(run)
    run.close()
    assert len(asked) <= 3


@pytest.mark.skipif(not library.available(), reason="no compiled kernels on this machine")
def test_where_threads_take_turns_on_one_the_companion_does_not_keep_it(monkeypatch, handed_over):
    """As greenlets do that stand in for threads: what is started runs here, and must come to an end."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    engine, pools = Engine(WEIGHTS, threads=2), make_pools([np.arange(9)], 1000)
    vectors = Engine(WEIGHTS, threads=1).encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
    expected = next(Engine(WEIGHTS, threads=1).run(vectors, pools))
    for x, y in zip(next(engine.run(vectors, pools)), expected, strict=True):
        np.testing.assert_array_equal(x, y)
    assert handed_over


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    engine = Engine(WEIGHTS, threads=2)
    short = make_pools([np.arange(9)], 1000)

    def both(engine):  # by a companion, and by workers
        vectors = engine.encode(token_ids(TOKENS, CONFIG, None, WEIGHTS.alphabet))
        return [np.concatenate(next(engine.run(vectors, short)), axis=1), *results(engine)]

    expected = both(engine)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        same = all(np.array_equal(x, y) for x, y in zip(both(engine), expected, strict=True))
        os.write(writer, b"same" if same else b"different")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"same"
    os.waitpid(child, 0)


def test_an_interrupted_program_does_not_wait_for_what_its_threads_are_at():
    program = "import time; from elmofire.engine.workers import Workers; w = Workers(1); w.start(time.sleep, 300); raise KeyboardInterrupt"
    subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_where_the_system_gives_fewer_threads_they_do_the_work_or_there_is_an_error(monkeypatch, given):
    left, start = iter(range(given)), threading.Thread.start

    def scarce(thread):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    pool = workers.Workers(3)
    for _ in range(2):
        if given:
            assert pool.map(abs, [-1, 2, -3]) == [1, 2, 3]
        else:
            with pytest.raises(RuntimeError):
                pool.map(abs, [-1, 2, -3])


def test_threads_end_with_their_engine():
    others = set(threading.enumerate())
    engine = Engine(WEIGHTS, threads=2)
    next(engine.run(results(engine)[0][:9, :12].copy(), make_pools([np.arange(9)], 1000)))
    started = {thread for thread in threading.enumerate() if thread.name.startswith("elmofire_")} - others
    assert len(started) == 3 if library.available() else 2  # a companion beside the workers
    del engine
    ends = time.monotonic() + 10
    while any(thread.is_alive() for thread in started):
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_compiled_kernels_use_the_cores_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert workers.usable_cores() == 3
    assert Engine(WEIGHTS, instruction_set="numpy").threads == 1
    if library.available():
        assert Engine(WEIGHTS).threads == 3
