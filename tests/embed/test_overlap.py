"""Work in the background: the same results in the same order, and no thread left behind."""

import itertools
import signal
import threading
import time

import numpy as np
import pytest
from models import lively, tiny

from elmofire import Embedder
from elmofire.embed.overlap import overlapped


def things(*values):
    return [(value, False) for value in values]


def take(stream, into):
    for _, made in stream:
        into.extend(made)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "elmofire"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    ends = time.monotonic() + 10
    while threads():
        assert time.monotonic() < ends, "a thread is still there"
        time.sleep(0.01)


def test_everything_comes_once_and_in_order():
    assert [(n, list(made)) for n, made in overlapped(range, things(3, 0, 2, 1))] == [
        (3, [0, 1, 2]),
        (0, []),
        (2, [0, 1]),
        (1, [0]),
    ]
    assert list(overlapped(range, [])) == []


def test_the_next_thing_is_read_while_one_is_in_work():
    read = threading.Event()

    def reading():
        yield 1, False
        read.set()
        yield 2, False

    def make(number):
        if number == 1:
            assert read.wait(10)  # it would wait in vain if reading waited for it
        yield number

    assert [list(made) for _, made in overlapped(make, reading())] == [[1], [2]]


def test_the_next_thing_is_in_work_while_results_are_used():
    begun = threading.Event()

    def make(number):
        if number == 2:
            begun.set()
        yield number

    for number, made in overlapped(make, things(1, 2)):
        assert list(made) == [number]
        assert begun.wait(10)


def test_input_is_read_in_the_callers_thread():
    def reading():
        for number in range(4):
            assert threading.current_thread() is threading.main_thread()
            yield number, False

    for _, made in overlapped(lambda _: [threading.current_thread()], reading()):
        assert next(made) is not threading.main_thread()  # and the rest need not be asked for


def test_a_single_thing_needs_no_thread():
    assert [list(made) for _, made in overlapped(lambda _: [threading.current_thread()], [(1, True)])] == [
        [threading.main_thread()]
    ]


def test_results_do_not_pile_up():
    count = itertools.count()

    def make(_):
        while True:
            yield next(count)

    stream = overlapped(make, things(1, 2))
    _, made = next(stream)
    assert [next(made) for _ in range(5)] == list(range(5))
    time.sleep(0.1)
    assert next(count) <= 5 + 4
    stream.close()


def test_errors_of_the_work_are_raised_where_its_results_are_taken():
    def make(number):
        yield number
        if number == 2:
            raise ZeroDivisionError("in the thread")
        yield number

    seen = []
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        take(overlapped(make, things(1, 2, 3)), seen)
    assert seen == [1, 1, 2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_of_the_input_end_everything(error):
    def reading():
        yield 1, False
        yield 2, False
        raise error

    with pytest.raises(error):
        take(overlapped(lambda number: itertools.repeat(number, 100), reading()), [])


def test_closing_ends_the_thread_even_if_it_waits():
    stream = overlapped(lambda number: itertools.repeat(number), things(1, 2))
    next(stream)
    assert threads()
    stream.close()


def test_an_interrupt_reaches_who_waits_for_a_result():
    def make(_):
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        yield from range(10)
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        take(overlapped(make, things(1, 2)), [])


SENTENCES = [[f"w{n % 17}", "x"] * (n % 6) for n in range(200)]


class TestStream:
    @pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
    def test_it_gives_what_embed_gives(self, batch_tokens):
        elmo = Embedder(lively(tiny()), device="cpu")
        expected = elmo.embed(SENTENCES)
        elmo.batch_tokens = batch_tokens
        found = list(elmo.stream(iter(SENTENCES)))
        assert [tokens for tokens, _ in found] == SENTENCES
        for (_, vectors), wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(vectors, wanted, rtol=1e-5, atol=1e-6)

    def test_a_stream_that_is_dropped_stops(self):
        elmo = Embedder(lively(tiny()), device="cpu")
        elmo.batch_tokens = 10
        stream = elmo.stream(itertools.cycle(SENTENCES))
        next(stream)
        assert threads()
        del stream

    def test_progress_is_told_in_the_callers_thread(self):
        elmo = Embedder(lively(tiny()), device="cpu")
        elmo.batch_tokens = 10
        told = []
        for _ in elmo.stream(SENTENCES, progress=lambda *made: told.append((*made, threading.current_thread()))):
            pass
        assert {thread for *_, thread in told} == {threading.main_thread()}
        assert sum(tokens for _, tokens, _ in told) == sum(map(len, SENTENCES))
