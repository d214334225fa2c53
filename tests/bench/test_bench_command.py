"""`elmofire bench`: what it prints, and how it ends."""

import json
import sys

import pytest
from models import lively, tiny

import elmofire.bench.lstmp
from elmofire import save_weights
from elmofire.bench.stacks import LOOP, Runner, Stack, loop
from elmofire.cli import main

TINY = ["--cells", "11", "--projection", "5", "--batch", "3,4", "--steps", "3"]
lstm_warning = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elmofire", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def model(tmp_path) -> str:
    save_weights(lively(tiny(), seed=5), tmp_path / "model")
    return str(tmp_path / "model")


@lstm_warning
def test_lstmp_prints_every_stack_and_says_what_cannot_run_here(monkeypatch, capsys):
    assert run(monkeypatch, "lstmp", *TINY, "--mode", "inference") == 0
    shown = capsys.readouterr().out
    for row in ("lstmp, torch", "torch.nn.LSTM (cannot clip)", "eager loop"):
        assert shown.count(f"\n{row}  ") == 2, row  # both batches
    assert "lstmp, gluon, float32, 3 rows: cannot run here" in shown


@lstm_warning
def test_lstmp_as_json_holds_all_records(monkeypatch, capsys):
    assert run(monkeypatch, "lstmp", *TINY, "--json", "--quiet") == 0
    said = capsys.readouterr()
    records = json.loads(said.out)
    assert said.err == ""
    assert {record["case"] for record in records} == {"parity", "product", "time"}
    gradients = [name for name in records[0]["errors"] if name.startswith("gradient of")]
    assert len(gradients) == 3 + 2 * 2 * 4  # inputs and state, and four arrays of each layer and direction


def test_a_refused_stack_ends_the_command_with_1(monkeypatch, capsys):
    def prepare(problem, precision):
        def forward():
            outputs, state = loop(problem)
            return outputs * 1.01, state

        return Runner(forward, problem.leaves(), problem.gradient)

    monkeypatch.setattr(elmofire.bench.lstmp, "stacks", lambda: [Stack("wrong", prepare), LOOP])
    assert run(monkeypatch, "lstmp", *TINY) == 1
    shown = capsys.readouterr().out
    assert "wrong, float32, 3 rows: not timed: outputs: off by 1.0e-02" in shown
    assert "\nwrong  " not in shown


def test_embed_prints_errors_rates_and_latencies(monkeypatch, capsys, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Stick to the plan, and don't look back.\n\nWhy?\n" * 4, encoding="utf-8")
    options = ["--model", model, "--text", str(text), "--singles", "3", "--engine", "numpy", "--quiet"]
    assert run(monkeypatch, "embed", *options) == 0
    shown = capsys.readouterr().out
    assert shown.count("\nnumpy ") == 3
    assert run(monkeypatch, "embed", *options, "--json", "--sentences", "0") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["case"] for record in records] == ["parity", "single"]
    assert records[1]["tokens"] == 11 + 2 + 11


def test_a_text_that_is_too_short_is_noted_unless_notes_are_unwanted(monkeypatch, capsys, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Why not?\n", encoding="utf-8")
    options = ["--model", model, "--text", str(text), "--sentences", "0", "--singles", "3", "--engine", "numpy"]
    assert run(monkeypatch, "embed", *options) == 0
    assert "note: the text has only 1 sentence\n" in capsys.readouterr().err
    assert run(monkeypatch, "embed", *options, "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["embed", "--precision", "int4"], "should be one of"),
        (["embed", "--size", "huge"], "small or original"),
        (["embed", "--model", "x", "--size", "small"], "give one of them"),
        (["embed", "--options", "options.json"], "--options belongs to a --model"),
        (["embed", "--threads", "1,none"], "not a list of numbers from 1"),
        (["lstmp", "--mode", "dream"], "train or inference"),
        (["lstmp", "--device", "abacus"], "cannot be used"),
        (["lstmp", "--repeats", "2"], "--repeats"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_a_mistake_ends_with_2_and_says_what_to_give(monkeypatch, capsys, arguments, told):
    assert run(monkeypatch, *arguments) == 2
    assert told in capsys.readouterr().err
