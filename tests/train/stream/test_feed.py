"""A feed gives what its stream gives, whatever its threads do."""

import threading
import time
from itertools import islice

import pytest
from train.stream.made_corpora import made_corpus
from train.stream.slow_reading import recipe, same

from elmofire.train.stream.feed import Feed
from elmofire.train.stream.stream import open_stream


@pytest.fixture(params=["sentences", "lanes"])
def stream(request, tmp_path):
    text = [[3 + number % 30] * (number % 9 + 1) for number in range(60)]
    corpus = made_corpus(tmp_path, [text[:25], text[25:]])
    return open_stream(corpus, recipe(reading=request.param, steps=4, softmax="sampled"), directions=2, parts=2)


@pytest.mark.parametrize(("ahead", "threads"), [(1, 1), (8, 2), (3, 5)])
def test_updates_come_in_order_over_epochs(stream, ahead, threads, monkeypatch):
    expected = list(islice(stream.updates(), 60))
    build = stream.build

    def late(plan):
        time.sleep(0.001 * (plan.number % 3))  # so that threads overtake each other
        return build(plan)

    monkeypatch.setattr(stream, "build", late)
    with Feed(stream, ahead=ahead, threads=threads) as feed:
        assert all(map(same, feed, expected))
    with Feed(stream, expected[20].position, ahead, threads) as feed:
        assert all(map(same, feed, expected[21:40]))


def test_no_more_is_made_than_was_allowed(stream, monkeypatch):
    built = []
    build = stream.build
    monkeypatch.setattr(stream, "build", lambda plan: (built.append(plan.number), build(plan))[1])
    with Feed(stream, ahead=3, threads=4) as feed:
        next(feed)
        deadline = time.monotonic() + 10
        while len(built) < 4 and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.02)
        assert sorted(built) == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["build", "plans"])
def test_an_error_comes_in_the_place_of_its_update_and_ends_the_feed(stream, where, monkeypatch):
    original = getattr(stream, where)

    def broken_build(plan):
        if plan.number == 5:
            raise OSError("the disk is gone")
        return original(plan)

    def broken_plans(position=None):
        yield from islice(original(position), 5)
        raise OSError("the disk is gone")

    monkeypatch.setattr(stream, where, broken_build if where == "build" else broken_plans)
    feed = Feed(stream, threads=3)
    assert [update.number for update in islice(feed, 5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)
    assert list(feed) == []
    assert not any(thread.name.startswith("feed") for thread in threading.enumerate())


def test_closing_ends_the_threads_at_any_time(stream):
    for taken in (0, 1, 7):
        feed = Feed(stream, threads=3)
        assert len(list(islice(feed, taken))) == taken
        feed.close()
        assert not any(thread.name.startswith("feed") for thread in threading.enumerate())
        feed.close()


def test_the_time_that_was_waited_is_counted(stream, monkeypatch):
    build = stream.build
    monkeypatch.setattr(stream, "build", lambda plan: (time.sleep(0.05), build(plan))[1])
    with Feed(stream, threads=1) as feed:
        next(feed)
        next(feed)
        assert feed.waited > 0.05
    second = threading.Event()
    monkeypatch.setattr(stream, "build", lambda plan: (plan.number == 1 and second.set(), build(plan))[1])
    with Feed(stream, threads=1) as feed:
        second.wait()  # so the first is ready
        next(feed)
        assert feed.waited < 0.04
