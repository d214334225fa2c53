"""`finetune` as a shell sees it."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from models import lively, tiny

from elmofire import LanguageModel, load_weights, save_weights
from elmofire.cli import main
from elmofire.cli.options import share_of
from elmofire.text.vocabulary import Vocabulary

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", ".", "cat", "dog", "owl", "sees", "hears", "fox", "mouse"])
LINES = [f"the {noun} {verb} the {other} ." for noun in ("cat", "dog", "owl") for verb in ("sees", "hears") for other in ("cat", "mouse", "fox")]  # fmt: skip
QUICK = ("updates=12", "batch_tokens=64", "rate=0.02", "optimizer.warmup=0", "evaluate_every=6", "log_every=6")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command as a shell would, in a folder with text and a model: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["elmofire", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    for name, lines in (("a.txt", LINES[:8]), ("b.txt", LINES[8:14]), ("held.txt", LINES[14:])):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    save_weights(replace(lively(tiny(head=len(WORDS)), seed=3), vocabulary=WORDS), tmp_path / "model")
    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own; this puts the old one back
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("elmofire.engine.workers.usable_cores", lambda: 1)
    return run


def test_perplexities_before_and_after_are_told_with_where_the_model_is(run):
    line = ("finetune", "model", "--text", "a.txt", "b.txt", "--held-out", "held.txt", "--output", "run", *QUICK)
    code, out, said = run(*line, "--device", "cpu")
    assert code == 0
    figures = [LanguageModel.load(model, device="cpu").perplexity(LINES[14:]) for model in ("model", "run")]
    shown = [f"forward {one.forward:.1f}, backward {one.backward:.1f}, mean {one.mean:.1f}, unknown 0.0%" for one in figures]  # fmt: skip
    assert figures[1].mean < figures[0].mean
    assert out.splitlines()[:2] == [f"before  {shown[0]}", f"after   {shown[1]}"]
    assert "elmofire perplexity --model run FILE" in out
    assert [line for line in said.splitlines() if line.startswith("before")] == [f"before:   {shown[0]}"]
    assert f"held-out: {shown[1]}, best" in said.splitlines()
    tokens = load_weights("run").training["corpus"]["tokens"]
    assert tokens == sum(len(line.split()) for line in LINES[:14])  # of both files
    again = run(*line, "--device", "cpu")
    assert again[:2] == (0, out)


def test_programs_get_one_object(run):
    code, out, said = run(
        "finetune", "model", *QUICK, "--text", "a.txt", "--held-out", "3", "-o", "run", "--vocab", "new", "--json", "-q"
    )
    assert (code, said) == (0, "")
    told = json.loads(out)
    assert told["after"]["mean"] == told["best"]["held_out"]["mean"] < told["before"]["mean"]
    assert "fox" in load_weights("run").vocabulary.words


def test_a_mistake_is_told_in_one_error(run):
    for arguments, message in (
        (("none", "--text", "a.txt"), "no model of that name"),
        (("model", "--text", "none.txt"), "no such file"),
        (("model", "--text", "a.txt", "epoch=2"), "did you mean `train.epochs`?"),
        (("model", "--text", "a.txt", "--vocab", "none.txt"), "none.txt"),
    ):
        code, out, error = run("finetune", *arguments, "--output", "run")
        assert (code, out) == (2, "")
        assert error.count("error:") == 1
        assert message in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("model", "--text", "a.txt", "epoch=2"),
        ("model", "--text", "a.txt", "batch_tokens=0"),
        ("model", "--text", "a.txt", "cells=12"),
        ("model", "--text", "none.txt"),
        ("model", "--text", "a.txt", "--held-out", "none.txt"),
        ("model", "--text", "a.txt", "--held-out", "0"),
        ("model", "--text", "a.txt", "--vocab", "none.txt"),
        ("none", "--text", "a.txt"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_before_torch_is_imported(run, tmp_path, arguments):
    program = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); from elmofire.cli import main; main()"
    line = [sys.executable, "-c", program, "finetune", *arguments, "--output", "run"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr.startswith("error: ")
    assert not list(tmp_path.glob("run*"))


def test_a_number_is_a_share_or_how_many_and_all_else_neither():
    shares = {"5%": 0.05, "0.1": 0.1, ".25": 0.25, "1.": 1.0, "1e-3": 1e-3, "2.5e-1%": 0.0025, "200": 200}
    assert {given: share_of(given) for given in shares} == shares
    assert isinstance(share_of("200"), int)
    assert [share_of(given) for given in ("held.txt", "5%.txt", "nan", "inf", "-1", "", "%", "1%%")] == [None] * 8
    assert share_of("9" * 5000) == float("inf")  # more digits than int() reads
