"""Two processes train what one trains; one that dies comes back, and the run ends as it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from train.run import kills, small_runs

_BEGIN = """
import signal
from dataclasses import replace
from train.run import kills, small_runs
from train.run.small_runs import RECIPES, assert_same, exit_codes_of_two, newest_update, outcome
from elmofire.train.run import loop, records

records.matrix_rate = lambda device, precision: 1e12  # nothing but the clock's figures depend on it
"""


def test_two_ranks_train_what_one_process_trains():
    program = """
def short(kind):
    # Of so many tokens, updates have numbers of rows that ranks and parts do not divide: 25, 13 and 8 sentences, 17 lanes.
    return replace(RECIPES[kind], train=replace(RECIPES[kind].train, updates=12, evaluate_every=6, batch_tokens=100))

def lines(found, kind):
    return [record for record in found["log"] if record["kind"] == kind]

def assert_near(found, expected, near, equal):
    for record, other in zip(found, expected, strict=True):
        assert all(abs(record[name] - other[name]) <= 2e-5 * other[name] for name in near), (record, other)
        assert all(record[name] == other[name] for name in equal), (record, other)

keep_best = loop.keep_best

def two(run, kind):
    def act(rank):
        loop.keep_best = lambda *given: (print(kind, given[1], rank, flush=True), keep_best(*given))
        small_runs.train(corpus, run, short(kind))

    assert exit_codes_of_two(act) == [0, 0]
    return outcome(run)

with kills.folder_in_memory() as folder:
    corpus = small_runs.write_corpus(folder / "corpus")
    for kind, parts in (("sentences-full", ""), ("sentences-sampled", "-parts"), ("lanes-full", "-parts"), ("lanes-sampled", "")):
        small_runs.train(corpus, folder / kind, short(kind))
        expected, found = outcome(folder / kind), two(folder / f"{kind}-two", kind + parts)
        near, equal = ("loss", "forward", "backward", "norm"), ("update", "rate", "epoch", "tokens", "skipped")
        assert_near(lines(found, "train"), lines(expected, "train"), near, equal)
        near, equal = ("forward", "backward", "mean"), ("update", "events", "unknown", "best")
        assert_near(lines(found, "evaluation"), lines(expected, "evaluation"), near, equal)
        assert found["tensors"].keys() == expected["tensors"].keys()
        for name in found["tensors"]:
            if name.startswith(("sums/", "state/")):
                continue  # a row for each rank; and the rows of states have other places
            far = (found["tensors"][name].double() - expected["tensors"][name].double()).abs().max()
            assert far < 1e-5, (kind, name, far)
"""
    written = kills.run(_BEGIN + program).splitlines()
    kinds = ["sentences-full", "sentences-sampled-parts", "lanes-full-parts", "lanes-sampled"]
    assert written == [f"{kind} {update} 0" for kind in kinds for update in (6, 12)]


def test_two_ranks_finetune_as_one_process_does():
    """The first prepares the text, for which the other waits."""
    program = """
import os
import torch
from models import lively, tiny
from elmofire import save_weights
from elmofire.text.vocabulary import Vocabulary
from elmofire.train import finetune as tuning

WORDS = ["<S>", "</S>", "<UNK>", "of", "the", "neural", ".", "words", ",", "language", "models", "to", "a", "use", "larger"]
SETTINGS = {
    "softmax": "full", "dropout.input": 0, "dropout.layers": 0, "dropout.output": 0, "precision": "float32", "rate": 0.02,
    "batch_tokens": 100, "updates": 12, "epochs": None, "evaluate_every": 6, "log_every": 2,
}

prepared = tuning.prepare
tuning.prepare = lambda *given, **named: (print("prepared by", os.environ.get("RANK"), flush=True), prepared(*given, **named))[1]

def tuned(name):
    torch.set_num_threads(1)
    texts = [folder / "text.txt"], folder / name
    tuning.finetune(folder / "model", texts[0], output=texts[1], held_out=folder / "held.txt", device="cpu", **SETTINGS)

with kills.folder_in_memory() as folder:
    for name, count in (("text.txt", 60), ("held.txt", 20)):
        (folder / name).write_text("".join(f"the {WORDS[k % 9 + 3]} use a {WORDS[k % 7 + 5]} .\\n" for k in range(count)))
    weights = lively(tiny(head=len(WORDS)), seed=3, vocabulary=Vocabulary(WORDS))
    save_weights(weights, folder / "model")
    tuned("one")
    assert exit_codes_of_two(lambda rank: tuned("two")) == [0, 0]
    for one, two in zip(tuning.perplexities(folder / "one"), tuning.perplexities(folder / "two"), strict=True):
        print(one["mean"], two["mean"])
"""
    *prepared, before, after = kills.run(_BEGIN + program).splitlines()
    assert prepared == ["prepared by None", "prepared by 0"]
    (one_before, two_before), (one_after, two_after) = (map(float, line.split()) for line in (before, after))
    assert two_before == pytest.approx(one_before, rel=1e-5)
    assert two_after == pytest.approx(one_after, rel=1e-4)
    assert one_after < 0.7 * one_before


def test_each_rank_hears_what_all_say():
    program = """
from elmofire.train.run.ranks import joined

def act(rank):
    with joined("cpu") as ranks:
        assert ranks.gathered({"rank": rank}) == [{"rank": 0}, {"rank": 1}]

assert exit_codes_of_two(act) == [0, 0]
"""
    kills.run(_BEGIN + program)


def test_what_one_rank_is_told_all_do():
    program = """
import gc
import torch
from torch.nn.parallel import DistributedDataParallel

part = torch.distributed.destroy_process_group

def part_with_nothing_left():  # what still holds the group would end it, and may hang in that
    assert not any(type(thing) is DistributedDataParallel for thing in gc.get_objects())
    part()

torch.distributed.destroy_process_group = part_with_nothing_left
recipe = RECIPES["lanes"]
recipe = replace(recipe, train=replace(recipe.train, updates=20))

def asked_to_end(rank):
    if rank == 1:
        small_runs.signal_self_at(run, 6, signal.SIGTERM)
    small_runs.train(corpus, run, recipe)

def apart(rank):
    small_runs.train(corpus, run if rank == 0 else folder / "elsewhere", recipe)

with kills.folder_in_memory() as folder:
    corpus, run = small_runs.write_corpus(folder / "corpus"), folder / "run"
    assert exit_codes_of_two(lambda rank: small_runs.train(corpus, folder / "expected", recipe)) == [0, 0]
    assert exit_codes_of_two(asked_to_end) == [130, 130]
    assert 6 <= newest_update(run) < 20
    other = replace(recipe, train=replace(recipe.train, seed=7))
    assert exit_codes_of_two(lambda rank: small_runs.train(corpus, run, other)) == [2, 2]
    assert small_runs._exit_code(lambda rank: small_runs.train(corpus, run, recipe), 0) == 2
    assert exit_codes_of_two(apart)[1] == 2

    assert exit_codes_of_two(lambda rank: small_runs.train(corpus, run, recipe)) == [0, 0]
    assert_same(outcome(run), outcome(folder / "expected"))
"""
    said = [line.partition(": ") for line in kills.run(_BEGIN + program).splitlines()]
    expected = {
        ("rank 0", "run: holds a run of another recipe: train.seed is 7 now and was 1"),
        ("rank 1", "run: holds a run of another recipe: train.seed is 7 now and was 1"),
        ("rank 0", "run: the run was made by 2 processes, but 1 want to go on with it"),
        ("rank 1", "elsewhere: rank 1 finds a checkpoint of update None there"),
    }
    assert {(rank, text.rpartition("/")[2].partition(", and")[0]) for rank, _, text in said} == expected


def test_ranks_that_are_killed_come_back_by_torchruns_own_restart(tmp_path: Path):
    program = f"""
from pathlib import Path

folder = Path({str(tmp_path)!r})
corpus = small_runs.write_corpus(folder / "corpus")
assert exit_codes_of_two(lambda rank: small_runs.train(corpus, folder / "expected", "lanes")) == [0, 0]
"""
    kills.run(_BEGIN + program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    command += [small_runs.__file__, str(tmp_path / "corpus"), str(tmp_path / "run"), "lanes", "1:6", "0:21"]
    paths = os.pathsep.join([str(kills.TESTS), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("exitcode: -9") == 2, done.stderr
    small_runs.assert_same(small_runs.outcome(tmp_path / "run"), small_runs.outcome(tmp_path / "expected"))
