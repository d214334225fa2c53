"""`pretrain` as a shell sees it: what it says, how it ends, how it goes on, and what its runs can be used for."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from elmofire import Embedder, LanguageModel, load_weights, pretrain
from elmofire.cli import training
from elmofire.cli.training import RunLines, evaluation_line, start_lines, train_line
from elmofire.errors import RecipeError
from elmofire.train.corpus.prepare import prepare
from elmofire.train.files.log import read_log
from elmofire.train.recipes import find_recipe
from elmofire.train.run.loop import CHECKPOINTS

SIZES = ("cells=12", "model.projection=6", "encoder.width=6", "filters=[[1, 4], [2, 6]]", "max_characters=12")
QUICK = (*SIZES, "updates=12", "batch_tokens=64", "log_every=4", "evaluate_every=6", "train.minutes=none")
LINES = [f"the {noun} {verb} the {other} ." for noun in ("cat", "dog", "owl") for verb in ("sees", "hears") for other in ("cat", "mouse", "fox")]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    settings = {"sentences": "lines", "documents": "records", "held_out": 4}
    return prepare([str(folder / "text.txt")], folder / "corpus", **settings, processes=1).folder


@pytest.fixture
def made(run, corpus, tmp_path):
    """A run that has come to its end, and what was said."""
    folder = tmp_path / "run"
    return folder, *run("pretrain", "tiny", *QUICK, "--data", corpus, "--output", folder, "--device", "cpu")


def test_it_tells_what_it_will_do_how_far_it_is_and_where_the_model_is(made):
    folder, code, out, said = made
    assert code == 0
    weights, log = load_weights(folder), read_log(folder)
    start = next(record for record in log if record["kind"] == "start")
    lines = said.splitlines()
    assert f"model   {weights.config.parameters:,} parameters, and a head of {weights.config.head} words" in lines
    assert f"text    {start['tokens_per_epoch']} tokens an epoch, in {start['updates_per_epoch']} updates" in lines
    assert f"run     12 updates, {12 / start['updates_per_epoch']:.3g} epochs" in lines
    assert [line.split(" · ")[0] for line in lines if line.startswith("update")] == ["update 4/12", "update 8/12", "update 12/12"]  # fmt: skip
    assert all(" · full loss " in line and " left · " in line for line in lines if line.startswith("update"))
    best = weights.training["held_out"]
    assert any(f"held-out: forward {best['forward']:.1f}, backward {best['backward']:.1f}, mean {best['mean']:.1f}" in line for line in lines)  # fmt: skip
    assert "perplexity" not in said
    assert f"model   {folder}: that of update {weights.training['update']}, forward" in out
    for command in (f"perplexity --model {folder} FILE", f"embed --model {folder} ", f"convert {folder} OUT --to hdf5"):
        assert f"elmofire {command}" in out


def test_the_same_line_again_finds_it_done(run, made, corpus):
    folder, _, first, _ = made
    code, out, said = run("pretrain", "tiny", *QUICK, "--data", corpus, "--output", folder, "--device", "cpu")
    assert (code, out) == (0, first)
    assert said == f"{folder}: has already ended, after update 12\n"


def test_that_a_run_goes_on_is_said_when_it_does_and_not_when_it_is_refused(run, corpus, tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other"
    line = ("pretrain", "tiny", *QUICK, "checkpoint_every=8", "--output", folder, "--device", "cpu")

    def fail(record):
        if record["update"] == 12:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        pretrain(find_recipe("tiny", line[2:-4]), data=corpus, output=folder, device="cpu", show=fail)
    (tmp_path / "text.txt").write_text("\n".join(LINES[1:]) + "\n", encoding="utf-8")
    settings = {"sentences": "lines", "documents": "records", "held_out": 4}
    prepare([str(tmp_path / "text.txt")], other, **settings, processes=1)
    code, _, said = run(*line, "--data", other)
    assert code == 2
    assert "made on another corpus" in said
    assert "going on" not in said
    code, _, said = run(*line, "--data", corpus)
    assert code == 0
    assert said.splitlines()[0] == f"{folder}: going on after update 8"


def test_a_machine_that_would_take_days_is_told_so_before_the_start(run, corpus, tmp_path, monkeypatch):
    said = {}
    for rate in (1e12, 1e2):  # operations a second
        monkeypatch.setattr("elmofire.train.run.records.matrix_rate", lambda device, precision, rate=rate: rate)
        line = ("--data", corpus, "--output", tmp_path / f"{rate:.0f}", "--device", "cpu")
        code, _, said[rate] = run("pretrain", "tiny", *QUICK, *line)
        assert code == 0
    assert "\ntime " not in said[1e12]
    lines = said[1e2].splitlines()
    (told,) = [line for line in lines if line.startswith("time ")]
    assert told.startswith("time    about ")
    assert " days on this machine" in told
    assert lines.index(told) < min(number for number, line in enumerate(lines) if line.startswith("update "))


def test_a_run_that_diverges_is_seen_to(run, corpus, tmp_path):
    wild = ("optimizer.name=sgd", "rate=1e30", "clip=none", "warmup=0", "log_every=1", "updates=50")
    code, _, said = run("pretrain", "tiny", *QUICK, *wild, "--data", corpus, "-o", tmp_path / "run", "--device", "cpu")
    assert code == 2
    lines = [line for line in said.splitlines() if line.startswith("update ")]
    assert "loss not finite" in lines[-1]
    assert not any(" loss 0." in line for line in lines)
    assert "the last 10 updates were not finite" in said


def test_programs_get_one_object_and_quiet_is_quiet(run, corpus, tmp_path):
    folder = tmp_path / "run"
    line = ("pretrain", "tiny", *QUICK, "--data", corpus, "-o", folder, "--device", "cpu", "--json", "--quiet")
    code, out, said = run(*line)
    assert (code, said) == (0, "")
    told = json.loads(out)
    assert told["run"] == str(folder)
    best = min((record for record in read_log(folder) if record["kind"] == "evaluation"), key=lambda one: one["mean"])
    assert told["best"]["update"] == best["update"]
    assert told["best"]["held_out"]["mean"] == best["mean"]


def test_a_recipe_of_ones_own_is_a_file(run, corpus, tmp_path):
    code, text, _ = run("recipes", "tiny")
    (tmp_path / "mine.toml").write_text(text.replace("seed = 1", "seed = 7"), encoding="utf-8")
    folder = tmp_path / "run"
    code, _, _ = run("pretrain", tmp_path / "mine.toml", *QUICK, "--data", corpus, "-o", folder, "--device", "cpu")
    assert code == 0
    assert "seed = 7" in (folder / "recipe.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("tinny", (), "did you mean tiny?"),
        ("tiny", ("train.update=3",), "did you mean `train.updates`?"),
        ("tiny", ("updates=few",), "should be of type int"),
        ("nowhere.toml", (), "no such file"),
        ("finetune", (), "elmofire finetune MODEL"),
        ("tiny", ("evaluate_on=dev",), "the corpus has heldout\nhint: train.evaluate_on=none"),
        ("tiny", ("memory_gb=8",), "only on a GPU is a run held to it"),
        ("tiny", ("accumulate=5000",), "fewer parts, or more train.batch_tokens"),
        ("tiny", ("reset=true",), "reset is true, but sentences always start with a zero state"),
    ],
)
def test_a_mistake_is_told_in_one_error_before_anything_is_trained(run, corpus, tmp_path, recipe, settings, message):
    code, out, error = run("pretrain", recipe, *settings, "--data", corpus, "--output", tmp_path / "run", "--device", "cpu")  # fmt: skip
    assert (code, out) == (2, "")
    assert error.count("error:") == 1
    assert message in error


def test_what_is_no_corpus_and_no_run_of_this_recipe_is_refused(run, made, corpus, tmp_path):
    code, _, error = run("pretrain", "tiny", "--data", tmp_path / "none", "--output", tmp_path / "new")
    assert (code, "is no prepared corpus" in error) == (2, True)
    assert not (tmp_path / "new").exists()
    code, _, error = run("pretrain", "tiny", *QUICK, "seed=2", "--data", corpus, "--output", made[0], "--device", "cpu")
    assert (code, "train.seed is 2 now" in error) == (2, True)


@pytest.mark.parametrize("command", [("pretrain", "tiny", "--data", "none"), ("finetune", "none", "--text", "none")])
def test_without_torch_the_extra_is_named(run, monkeypatch, tmp_path, command):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, error = run(*command, "--output", tmp_path / "run")
    assert code == 2
    assert 'pip install ".[torch,train]"' in error


def _said_of(run):
    """What run.json says, if it is there."""
    return (run / "run.json").read_text() if (run / "run.json").is_file() else ""


def test_a_run_loads_while_it_goes_on_and_says_how_to_go_on_when_interrupted(corpus, tmp_path):
    folder = tmp_path / "run"
    settings = (*SIZES, "updates=100000", "batch_tokens=64", "train.minutes=none", "log_every=1", "evaluate_every=5")
    line = [sys.executable, "-m", "elmofire", "pretrain", "tiny", *settings, "--data", corpus, "-o", folder]
    process = subprocess.Popen(
        [*map(str, line), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while '"best-' not in _said_of(folder) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(5):  # its best model is put in the place of the last one meanwhile
        assert LanguageModel.load(folder, device="cpu").perplexity(LINES).events == sum(
            len(line.split()) + 1 for line in LINES
        )
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "finishing this update and saving it" in said
    reached = max(int(entry.name) for entry in (folder / "checkpoints").iterdir())
    last = [line for line in said.splitlines() if line][-2:]
    assert last == [f"{folder}: run the same command again to resume after update {reached:,}", "interrupted"]
    assert "Traceback" not in said


@pytest.mark.parametrize("seconds", [0.3, 0.4, 0.5, 0.6, 0.8, 1.0])  # torch is being imported
@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_interrupted_at_its_beginning_it_ends_as_other_commands_do(corpus, tmp_path, command, seconds):
    arguments = {
        "pretrain": ["tiny", *QUICK, "updates=100000", "--data", corpus],
        "finetune": ["en-small", "updates=100000", "--text", corpus.parent / "text.txt"],
    }
    line = [sys.executable, "-m", "elmofire", command, *arguments[command], "-o", tmp_path / "run", "--device", "cpu"]
    process = subprocess.Popen([*map(str, line)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    assert ("to resume" in said) == (tmp_path / "run/checkpoints").exists()


def test_the_four_lines_of_the_page_run_as_they_stand(tmp_path):
    page = Path(__file__).parents[2] / "docs/how-to/pretrain.md"
    (block,) = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(block.splitlines()) == 4
    (tmp_path / "text.txt").write_text("\n\n".join(f"{line} {number}" for number, line in enumerate(LINES * 4)) + "\n")
    (tmp_path / "other.txt").write_text("\n".join(LINES) + "\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(["bash", "-e", "-c", block], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "model   run: that of update" in done.stdout
    assert (tmp_path / "vectors.hdf5").is_file()


def test_one_of_each_is_singular():
    record = {
        "parameters": 2,
        "head": 1,
        "tokens_per_epoch": 1,
        "updates_per_epoch": 1,
        "updates": 1,
        "minutes": 1,
        "parts": 1,
        "precision": "float32",
        "clock": {"ranks": 1, "device": "cpu"},
    }
    assert start_lines(record)[:3] == [
        "model   2 parameters, and a head of 1 word",
        "text    1 token an epoch, in 1 update",
        "run     1 update, 1 epoch or 1 minute, whichever comes first",
    ]


def test_only_the_first_of_many_processes_speaks(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RANK", "1")
    lines = RunLines(str(tmp_path / "run"), quiet=False)
    lines({"kind": "note", "text": "full softmax"})
    assert not lines.first
    monkeypatch.setenv("RANK", "0")
    RunLines(str(tmp_path / "run"), quiet=False)({"kind": "note", "text": "full softmax"})
    assert capsys.readouterr() == ("", "note: full softmax\n")


START = {
    "update": 0,
    "kind": "start",
    "parameters": 13_593_296,
    "head": 100_000,
    "tokens_per_epoch": 96_000_000,
    "updates_per_epoch": 1_500,
    "updates": 4_800,
    "minutes": None,
    "evaluate_every": 500,
    "precision": "bfloat16",
    "parts": 2,
    "clock": {"device": "cuda:0", "ranks": 4, "memory_estimate": 7_600_000_000, "memory_limit": 8_000_000_000},
}
TRAIN = {
    "update": 1_200,
    "kind": "train",
    "loss": 5.1234,
    "softmax": "sampled",
    "skipped": 0,
    "epoch": 0.8,
    "tokens": 2_400_000,
    "clock": {"seconds": 60.0, "tokens_per_second": 41_000.0, "peak_share": 0.38, "waited": 0.0},
}


def test_lines_say_what_was_promised():
    assert train_line(TRAIN, START) == (
        "update 1,200/4,800 · 2:56 left · sampled loss 5.12 · 41,000 tokens/s · 38% of peak · epoch 0.8"
    )
    by_the_clock = {**START, "updates": None, "minutes": 90.0}
    assert train_line({**TRAIN, "loss": None, "skipped": 3}, by_the_clock) == (
        "update 1,200 · 1:29:00 left · sampled loss not finite · 41,000 tokens/s · 38% of peak · epoch 0.8 · "
        "3 updates skipped, not finite"
    )
    assert train_line(TRAIN, None).endswith("epoch 0.8")
    assert start_lines(START)[2:] == [
        "run     4,800 updates, 3.2 epochs",
        "memory  7.6 GB expected of 8.0 GB, updates in 2 parts",
        "device  cuda:0, bfloat16, 4 processes",
    ]
    on_a_cpu = {"device": "cpu", "ranks": 1}
    for hours, told in ((2.9, None), (7.4, "about 7 hours"), (500.0, "about 21 days"), (48_000.0, "about 2,000 days")):
        lines = start_lines({**START, "clock": {**on_a_cpu, "hours_expected": hours}})[3:-1]
        assert [line.split(" on ")[0] for line in lines] == ([f"time    {told}"] if told else [])
    assert start_lines({**START, "minutes": 8.0})[2] == "run     4,800 updates, 3.2 epochs or 8 minutes, whichever comes first"  # fmt: skip
    found = {"forward": 151.23, "backward": 153.2, "mean": 152.21, "unknown": 0.018, "best": True}
    assert evaluation_line(found) == "held-out: forward 151.2, backward 153.2, mean 152.2, unknown 1.8%, best"
    one_way = {**found, "backward": None, "mean": 151.23, "best": False}
    assert evaluation_line(one_way) == "held-out: forward 151.2, mean 151.2, unknown 1.8%"


def test_evaluations_that_are_to_come_count_in_the_time_left_once_one_was_measured():
    def left(update, **start):
        record = {**TRAIN, "update": update, "tokens": 2_000 * update}
        told = [train_line(record, {**START, **start}, last) for last in (None, {"clock": {"seconds": 1_000.0}})]
        seconds = []
        for line in told:
            minutes, rest = re.search(r"([\d:]+):(\d\d) left", line).groups()
            hours, _, minutes = minutes.rpartition(":")
            seconds.append(3600 * int(hours or 0) + 60 * int(minutes) + int(rest))
        return seconds[1] - seconds[0]

    for updates, every in ((4_800, 500), (4_500, 500), (4_800, 4_800), (4_800, 10_000), (40, 1)):
        for update in (1, 20, 40, 499, 500, 501, 4_300, 4_500, 4_800):
            if update <= updates:
                to_come = [n for n in range(update, updates + 1) if n % every == 0 or n == updates]
                assert left(update, updates=updates, evaluate_every=every) == 1_000 * len(to_come)
    assert left(1_200, updates=None, minutes=90.0) == 1_000  # the others lie within the minutes
    without = {key: value for key, value in START.items() if key != "evaluate_every"}
    assert train_line(TRAIN, without, {"clock": {"seconds": 60.0}}).split(" · ")[1] == "3:56 left"


def test_a_run_that_goes_on_with_other_minutes_says_what_is_left_of_these(capsys, tmp_path):
    lines = RunLines(str(tmp_path / "run"), quiet=False)
    lines({**START, "minutes": 1.0})
    lines(TRAIN)
    lines({"update": 1_200, "kind": "resumed", "updates": 4_800, "minutes": None})
    lines(TRAIN)
    lines({"update": 1_200, "kind": "resumed", "updates": 4_800, "minutes": 2.0})
    lines(TRAIN)
    said = [line.split(" · ")[1] for line in capsys.readouterr().err.splitlines() if line.startswith("update")]
    assert said == ["0:00 left", "2:56 left", "1:00 left"]


def test_checkpoints_are_looked_for_where_runs_keep_them():
    """By a name of its own, since Ctrl-C may have left torch half imported."""
    assert training._CHECKPOINTS == CHECKPOINTS


def test_the_home_folder_is_known_by_its_sign(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/log.jsonl").write_text(json.dumps(START) + "\n")
    assert RunLines("~/run", quiet=False)._start == START


def test_that_it_evaluates_is_said_with_how_long_the_last_one_took(capsys, tmp_path):
    lines = RunLines(str(tmp_path / "run"), quiet=False)
    found = {"kind": "evaluation", "forward": 2.0, "mean": 2.0, "unknown": 0.0, "best": False, "clock": {"seconds": 75}}
    for record in ({"update": 1_200, "kind": "evaluating"}, found, {"update": 2_400, "kind": "evaluating"}):
        lines(record)
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[2]) == ("evaluating after update 1,200", "evaluating after update 2,400 · about 1:15")


def test_in_a_terminal_one_line_moves_and_evaluations_stay(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((60, 20)))
    lines = RunLines(str(tmp_path / "run"), quiet=False)
    lines(TRAIN)
    lines({**TRAIN, "update": 1_300})
    lines({"update": 1_300, "kind": "evaluating"})
    lines({"kind": "evaluation", "forward": 2.0, "mean": 2.0, "unknown": 0.0, "best": False})
    said = capsys.readouterr().err
    moved = [part for part in said.split("\r") if part.startswith("update")]
    assert [len(part) for part in moved] == [59, 59]
    assert said.count("\n") == 1
    assert "\revaluating after update 1,300 " in said
    assert said.endswith("\r" + " " * 29 + "\rheld-out: forward 2.0, mean 2.0, unknown 0.0%\n")


def test_python_takes_the_same_settings_as_the_command(made, corpus, tmp_path):
    changes = dict(setting.split("=", 1) for setting in QUICK[: len(SIZES)])
    numbers = {"updates": 12, "batch_tokens": 64, "log_every": 4, "train.evaluate_every": 6, "minutes": None}
    run = pretrain("tiny", data=corpus, output=tmp_path / "here", device="cpu", **changes, **numbers)
    recipe = find_recipe("tiny", QUICK)
    again = pretrain(recipe, data=corpus, output=tmp_path / "again", device="cpu")
    for folder in (run, again):
        assert (folder / "recipe.toml").read_text() == (made[0] / "recipe.toml").read_text()
        ours, theirs = load_weights(folder), load_weights(made[0])
        assert all(np.array_equal(ours.arrays[name], theirs.arrays[name]) for name in theirs.arrays)
    with pytest.raises(RecipeError, match=r"did you mean `train\.seed`"):
        pretrain(recipe, data=corpus, output=tmp_path / "none", sead=2)


def test_a_run_becomes_every_format_that_is_written(run, made, tmp_path):
    folder, lm = made[0], LanguageModel.load(made[0], device="cpu")
    expected = lm.perplexity(LINES)
    vectors = Embedder.load(folder, device="cpu").embed(LINES)
    for name, *options in (("native", "native"), ("hdf5", "hdf5"), ("int8", "native", "--storage", "int8")):
        out = tmp_path / name
        code, told, error = run("convert", folder, out, "--to", *options)
        assert code == 0, error
        assert error.endswith(": the training record\n") if name == "hdf5" else error == ""
        exact = name != "int8"
        found = LanguageModel.load(out, device="cpu").perplexity(LINES)
        assert found.mean == pytest.approx(expected.mean, rel=1e-6 if exact else 0.05)
        assert load_weights(out).vocabulary.words == lm._scorer.vocabulary.words
        for ours, theirs in zip(Embedder.load(out, device="cpu").embed(LINES), vectors, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6 if exact else 0.05)
    assert {file.name for file in (tmp_path / "hdf5").iterdir()} >= {"options.json", "vocab.txt"}
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    code, told, _ = run("perplexity", "--model", folder, "--json", "--device", "cpu", tmp_path / "text.txt")
    assert json.loads(told)["mean"] == pytest.approx(expected.mean)
    code, _, _ = run("embed", "--model", folder, "--quiet", "--output", tmp_path / "v.npz", tmp_path / "text.txt")
    assert code == 0


def test_settings_written_as_options_are_explained(run, tmp_path):
    code, _, error = run("pretrain", "tiny", "--batch-tokens", "3", "--data", tmp_path, "--output", tmp_path / "run")
    assert (code, "batch_tokens=VALUE" in error) == (2, True)


def test_between_the_lines_of_a_slow_run_a_terminal_sees_it_move(monkeypatch, capsys, tmp_path):
    lines = RunLines(str(tmp_path), quiet=False)
    lines({"kind": "made", "update": 1})
    assert capsys.readouterr().err == ""  # a file would only grow
    monkeypatch.setattr(lines._line, "terminal", True)
    monkeypatch.setattr("os.get_terminal_size", lambda _stream: os.terminal_size((200, 24)))
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2)
    lines({"kind": "made", "update": 1})
    assert capsys.readouterr().err == "\rupdate 1 · figures follow"
    clock = {"tokens_per_second": 100.0, "peak_share": 1.5, "seconds": 2.0}
    lines(
        {
            "kind": "train",
            "update": 20,
            "loss": 5.0,
            "softmax": "full",
            "epoch": 0.1,
            "skipped": 0,
            "tokens": 200,
            "clock": clock,
        }
    )
    lines({"kind": "made", "update": 23})
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert last == "update 23 · full loss 5.00 · 100 tokens/s · 100% of peak · epoch 0.1"


def test_a_run_that_is_refused_before_it_begins_leaves_nothing(run, corpus, tmp_path):
    output = tmp_path / "runs" / "first"
    code, _, error = run(
        "pretrain", "tiny", *QUICK, "memory_gb=8", "--data", corpus, "--output", output, "--device", "cpu"
    )
    assert (code, "memory_gb" in error) == (2, True)
    assert not (tmp_path / "runs").exists()
