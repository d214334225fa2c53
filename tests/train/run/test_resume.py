"""A run that was killed at any moment and started again leaves the same bits as one that was not."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train.run import kills, small_runs
from train.run.small_runs import RECIPES, assert_same, interrupted_at, outcome

from elmofire.errors import DataError, RecipeError
from elmofire.formats import load_weights
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.checkpoints import Checkpoints
from elmofire.train.files.log import read_log
from elmofire.train.run import loop
from elmofire.train.run.evaluate import Evaluation
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session
from elmofire.train.settings import OptimizerSettings

_SHORT = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, updates=20))


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "uninterrupted"
    small_runs.train(corpus, run, _SHORT)
    return outcome(run)


def test_twenty_kills_at_random_moments_change_nothing():
    program = """
import os, random, signal, time
from train.run import kills, small_runs
from train.run.small_runs import UPDATES, assert_same, newest_update, outcome
from elmofire.train.run import records

records.matrix_rate = lambda device, precision: 1e12  # nothing but the clock's figures depend on it
rng = random.Random(5)

def started(corpus, run, kind):
    child = os.fork()
    if child == 0:
        small_runs.train(corpus, run, kind)
        os._exit(0)
    return child

def ended(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

with kills.folder_in_memory() as folder:
    corpus, killed = small_runs.write_corpus(folder / "corpus"), 0
    for kind, wanted in (("sentences", 7), ("lanes", 7), ("averaged", 6)):
        began = time.monotonic()
        ended(started(corpus, folder / kind, kind))
        an_update = (time.monotonic() - began) / UPDATES
        expected = outcome(folder / kind)
        run, left = folder / f"{kind}-killed-0", wanted
        while left:
            # Somewhere in the next updates, evaluations or checkpoints after a checkpoint: often the one that it starts from.
            after = newest_update(run) + rng.choice((0, 0, 3, 6, 9))
            child, gone = started(corpus, run, kind), (0, 0)
            while newest_update(run) < after and gone[0] == 0:
                time.sleep(0.001)
                gone = os.waitpid(child, os.WNOHANG)
            if gone[0] == 0:
                time.sleep(rng.uniform(0, 12) * an_update)
                os.kill(child, signal.SIGKILL)
                gone = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(gone[1]) == -signal.SIGKILL:
                left, killed = left - 1, killed + 1
            else:  # it was quicker, and the next one is killed
                assert os.waitstatus_to_exitcode(gone[1]) == 0
                assert_same(outcome(run), expected)
                run = folder / f"{kind}-killed-{left}"
        ended(started(corpus, run, kind))
        assert_same(outcome(run), expected)
    print(killed)
"""
    assert kills.run(program) == "20"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_who_asks_it_to_end_gets_a_checkpoint_of_the_last_update(corpus, tmp_path, uninterrupted, number):
    def show(record):
        if record["update"] == 14:
            os.kill(os.getpid(), number)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        small_runs.train(corpus, run, _SHORT, show)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["00000012", "00000014"]
    assert read_log(run)[-1]["update"] == 14
    small_runs.train(corpus, run, _SHORT)
    assert_same(outcome(run), uninterrupted)


def test_a_broken_checkpoint_is_left_out_with_a_warning_for_the_one_before(corpus, tmp_path, uninterrupted):
    interrupted_at(14, corpus, tmp_path / "run", _SHORT)
    file = tmp_path / "run" / "checkpoints" / "00000014" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="00000014: is broken.*going on from .*00000012"):
        small_runs.train(corpus, tmp_path / "run", _SHORT)
    assert_same(outcome(tmp_path / "run"), uninterrupted)


def test_a_run_that_has_ended_is_left_as_it_is(corpus, tmp_path):
    run, shown = tmp_path / "run", []
    recipe = replace(_SHORT, train=replace(_SHORT.train, updates=6))
    small_runs.train(corpus, run, recipe)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*") if path.name != ".lock"}
    assert loop.train(recipe, data=corpus, output=run, device="cpu", show=shown.append) == run
    after = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*") if path.name != ".lock"}
    assert after == before
    assert shown == [{"update": 6, "kind": "ended"}]


def test_a_run_that_was_killed_before_its_plot_gets_it(corpus, tmp_path):
    recipe = replace(_SHORT, train=replace(_SHORT.train, updates=6))
    small_runs.train(corpus, tmp_path, recipe)
    (tmp_path / "run.svg").unlink()
    small_runs.train(corpus, tmp_path, recipe)
    assert (tmp_path / "run.svg").is_file()


def test_those_who_watch_are_told_where_a_run_goes_on_and_that_it_evaluates_and_the_log_is_not(corpus, tmp_path):
    interrupted_at(14, corpus, tmp_path, _SHORT)
    shown = []
    small_runs.train(corpus, tmp_path, _SHORT, shown.append)
    assert [(record["update"], record["kind"]) for record in shown] == [
        (14, "resumed"),
        (16, "train"),
        (18, "train"),
        (20, "train"),
        (20, "evaluating"),
        (20, "evaluation"),
    ]
    assert {record["kind"] for record in read_log(tmp_path)} == {"start", "train", "evaluation"}


def test_a_warm_up_that_is_longer_than_the_run_is_noted(corpus, tmp_path):
    for updates, noted in ((4, False), (3, True)):
        recipe = replace(_SHORT, train=replace(_SHORT.train, updates=updates))
        assert recipe.optimizer.warmup == 4
        small_runs.train(corpus, tmp_path / str(updates), recipe)
        log = read_log(tmp_path / str(updates))
        notes = [record["text"] for record in log if record["kind"] == "note"]
        assert any("optimizer.warmup=4 updates, but the run has 3" in note for note in notes) is noted
        reached = max(record["rate"] for record in log if record["kind"] == "train")
        assert (reached < recipe.optimizer.rate) is noted


class TestRefused:
    def test_another_recipe(self, corpus, tmp_path):
        interrupted_at(4, corpus, tmp_path, _SHORT)
        other = replace(_SHORT, optimizer=replace(_SHORT.optimizer, rate=0.5))
        with pytest.raises(
            DataError, match=r"holds a run of another recipe: optimizer\.rate is 0\.5 now and was 0\.02"
        ):
            small_runs.train(corpus, tmp_path, other)

    def test_another_corpus(self, corpus, tmp_path):
        interrupted_at(4, corpus, tmp_path / "run", _SHORT)
        other, shown = small_runs.write_corpus(tmp_path / "other", seed=2), []
        with pytest.raises(DataError, match=r"the run was made on another corpus than .*other"):
            small_runs.train(other, tmp_path / "run", _SHORT, shown.append)
        assert not shown  # that it goes on, for instance

    def test_another_device(self, corpus, tmp_path, monkeypatch):
        interrupted_at(4, corpus, tmp_path, _SHORT)
        newest = Checkpoints(tmp_path / "checkpoints").newest()
        elsewhere = newest._replace(facts={**newest.facts, "device": "cuda"})
        monkeypatch.setattr(Checkpoints, "newest", lambda self: elsewhere)
        with pytest.raises(DataError, match="made on the device cuda, but is to go on on cpu"):
            small_runs.train(corpus, tmp_path, _SHORT)

    def test_a_second_process_in_the_same_folder(self, corpus, tmp_path, uninterrupted):
        said = []

        def show(record):
            if record["update"] == 8:
                with pytest.raises(DataError, match="another process is training there") as error:
                    small_runs.train(corpus, tmp_path, _SHORT)
                said.append(error)

        small_runs.train(corpus, tmp_path, _SHORT, show)
        assert said
        assert_same(outcome(tmp_path), uninterrupted)

    def test_a_folder_of_something_else(self, corpus, tmp_path):
        (tmp_path / "letters.txt").write_text("dear all")
        with pytest.raises(DataError, match="exists and holds no training run"):
            small_runs.train(corpus, tmp_path, _SHORT)
        assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]

    @pytest.mark.parametrize("name", ["file", "file/run"])
    def test_a_file_in_the_place_of_the_folder(self, corpus, tmp_path, name):
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=f"{name}: (is a file|cannot be written: Not a directory)"):
            small_runs.train(corpus, tmp_path / name, _SHORT)

    def test_a_held_out_split_that_is_not_there_before_anything_is_trained(self, corpus, tmp_path, uninterrupted):
        wrong = replace(_SHORT, train=replace(_SHORT.train, evaluate_on="news"))
        with pytest.raises(RecipeError, match="'news', but the corpus has heldout"):
            small_runs.train(corpus, tmp_path / "new" / "run", wrong)
        small_runs.train(corpus, tmp_path / "new" / "run", _SHORT)  # the name is still free
        assert_same(outcome(tmp_path / "new" / "run"), uninterrupted)


def test_a_disk_that_takes_no_more_is_one_clear_error_and_with_room_the_run_goes_on():
    program = """
import resource
from dataclasses import replace
from train.run import kills, small_runs
from train.run.small_runs import RECIPES, assert_same, interrupted_at, outcome
from elmofire.errors import DataError

with kills.folder_in_memory() as folder:
    corpus = small_runs.write_corpus(folder / "corpus")
    recipe = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, updates=16, evaluate_every=8))
    small_runs.train(corpus, folder / "expected", recipe)
    expected = outcome(folder / "expected")
    largest = {name: max(f.stat().st_size for f in (folder / "expected").glob(name)) for name in (
        "recipe.toml", "log.jsonl", "checkpoints/*/state.safetensors", "best-*/*.safetensors")}
    run = folder / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sorted(largest.values()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
        try:
            small_runs.train(corpus, run, recipe)
        except DataError as error:
            assert str(error).startswith(f"{run}: cannot be written: "), error
            assert "too large" in str(error).lower(), error
            print("refused")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    small_runs.train(corpus, run, recipe)
    assert_same(outcome(run), expected)
"""
    assert kills.run(program).split() == ["refused"] * 4


@pytest.mark.parametrize("name", ["adamw", "adagrad", "sgd"])
@pytest.mark.parametrize("reading", ["sentences", "lanes"])
def test_a_checkpoint_holds_every_number_that_later_updates_depend_on(corpus, tmp_path, name, reading):
    base = RECIPES[reading]
    recipe = replace(base, optimizer=OptimizerSettings(name=name, rate=0.02, average=0.9))
    sessions = [Session(recipe, Corpus.open(corpus), Ranks(0, 1, torch.device("cpu"))) for _ in range(2)]
    checkpoints = Checkpoints(tmp_path)
    updates = sessions[0].stream.updates()
    for _ in range(5):
        update = next(updates)
        sessions[0].stepper(update, 0.02)
        sessions[0].made(update)
    sessions[0].save(checkpoints)
    sessions[1].load(checkpoints.newest(), tmp_path)
    resumed = sessions[1].stream.updates(sessions[1].progress.position)
    for session, goes_on in zip(sessions, (updates, resumed), strict=True):
        for _ in range(4):
            session.stepper(next(goes_on), 0.02)
    flat = [
        [s.parameters.weights, *s.optimizer.state().values(), s.stepper.losses, s.stepper.tokens, *s.stepper.state]
        for s in sessions
    ]
    for found, expected in zip(*flat, strict=True):
        assert expected.isfinite().all()
        assert torch.equal(found, expected)


def test_without_held_out_text_the_last_model_is_kept(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "suited", lambda recipe, corpus, **_: (corpus.heldout.clear(), (recipe, []))[1])
    interrupted_at(14, corpus, tmp_path, _SHORT)
    assert load_weights(tmp_path).config.head == 120
    small_runs.train(corpus, tmp_path, _SHORT)
    assert {record["kind"] for record in read_log(tmp_path)} == {"note", "start", "train"}
    assert outcome(tmp_path)["run.json"]["best"] == "best-00000020"
    with pytest.raises(RecipeError, match="'plateau', which evaluations decide, but the corpus has no held-out text"):
        small_runs.train(corpus, tmp_path / "other", RECIPES["averaged"])


def test_a_perplexity_that_is_no_number_does_not_stay_the_best(corpus, tmp_path, monkeypatch):
    means = iter([np.nan, 50.0, 60.0, np.nan])
    monkeypatch.setattr(loop, "evaluate", lambda *_: Evaluation("heldout", {"forward": next(means)}, 9, 0.0, []))
    recipe = replace(_SHORT, train=replace(_SHORT.train, evaluate_every=5))
    with pytest.raises(RecipeError, match=r"update 20: the held-out perplexity is nan, and was 50\.0 before"):
        small_runs.train(corpus, tmp_path, recipe)
    assert [record["best"] for record in read_log(tmp_path) if record["kind"] == "evaluation"] == [
        True,
        True,
        False,
        False,
    ]
    assert outcome(tmp_path)["run.json"]["best"] == "best-00000010"


def test_a_text_that_is_learned_by_heart_does_not_end_the_run(corpus, tmp_path, monkeypatch):
    """What is held out gets worse, and the training loss does not."""
    means = iter([50.0, 900.0, 950.0, 1000.0])
    monkeypatch.setattr(loop, "evaluate", lambda *_: Evaluation("heldout", {"forward": next(means)}, 9, 0.0, []))
    recipe = replace(_SHORT, train=replace(_SHORT.train, evaluate_every=5, log_every=5))
    small_runs.train(corpus, tmp_path, recipe)
    assert outcome(tmp_path)["run.json"]["best"] == "best-00000005"


def test_memory_that_runs_out_is_told_in_one_line(corpus, tmp_path, monkeypatch):
    def too_much(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(loop, "Session", too_much)
    with pytest.raises(RecipeError, match=r"the memory of cpu has run out\nhint: a smaller model"):
        small_runs.train(corpus, tmp_path / "run", _SHORT)


def test_text_that_was_damaged_is_found_before_anything_is_trained(tmp_path):
    corpus = small_runs.write_corpus(tmp_path / "corpus")
    ids = next(Path(corpus).glob("train-*.ids.npy"))
    ids.write_bytes(ids.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    with pytest.raises(DataError, match=rf"damaged: {ids.name}"):
        small_runs.train(corpus, tmp_path / "run", _SHORT)
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_no_text_is_that_of_another_run(corpus, tmp_path):
    interrupted_at(6, corpus, tmp_path, _SHORT)
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="holds a run of another recipe"):
        small_runs.train(corpus, tmp_path, _SHORT)
