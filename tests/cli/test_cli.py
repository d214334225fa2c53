"""The command line as a shell sees it: what goes where, and how it ends."""

import gzip
import json
import lzma
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny

from elmofire import Embedder, open_embeddings, save_weights
from elmofire.cli import cli
from elmofire.cli.bench import bench

ELMOFIRE = [sys.executable, "-m", "elmofire"]


def run(*arguments, text=None, env=None, cwd=None):
    return subprocess.run(
        [*ELMOFIRE, *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )


def in_terminal(*arguments, typed=b""):
    """Run with a terminal for stdin, stdout and stderr: exit code, and what the terminal shows."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen([*ELMOFIRE, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(mine, typed)
    seen = bytearray()
    while chunk := _read(mine):
        seen += chunk
    os.close(mine)
    return process.wait(), seen.decode().replace("\r\n", "\n")


@pytest.fixture
def model(tmp_path):
    save_weights(lively(tiny()), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("Don't go.\n\nWhy not?\n")
    return tmp_path / "text.txt"


TOKENS = [["Do", "n't", "go", "."], [], ["Why", "not", "?"]]


class TestEmbed:
    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    def test_a_file_becomes_a_file(self, model, text, tmp_path, suffix):
        done = run("embed", "--model", model, "--output", tmp_path / f"v.{suffix}", text, "--json", "--layers", "all")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["sentences"], summary["tokens"], summary["truncated"]) == (3, 7, 0)
        assert "3 sentences, 7 tokens in" in done.stderr
        embeddings = open_embeddings(tmp_path / f"v.{suffix}")
        for number, expected in enumerate(Embedder.load(model).embed(TOKENS, layers="all")):
            assert embeddings.tokens(number) == TOKENS[number]
            np.testing.assert_allclose(embeddings[number], expected, rtol=1e-5, atol=1e-6)

    def test_stdin_becomes_stdout(self, model):
        done = run("embed", "--model", model, "--layers", "top", "--pretokenized", "--quiet", text="Do n't go .\n\n")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["tokens"] for line in lines] == [["Do", "n't", "go", "."], []]
        expected = Embedder.load(model).embed(TOKENS[:1], layers="top")[0]
        np.testing.assert_allclose(lines[0]["vectors"], expected, rtol=1e-5, atol=1e-6)
        assert done.stderr == ""

    def test_every_kind_of_input_is_read(self, model, tmp_path):
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"Don't go.\n"))
        (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"Don't go.\n"))
        row = "\t_" * 8
        (tmp_path / "c.conllu").write_text(
            f"# text = Don't go.\n1-2\tDon't{row}\n1\tDo{row}\n2\tn't{row}\n3\tgo{row}\n4\t.{row}\n\n"
        )
        (tmp_path / "d.jsonl").write_text('{"text": "Don\'t go."}\n["Do", "n\'t", "go", "."]\n')
        files = [tmp_path / name for name in ("a.txt.gz", "b.txt.xz", "c.conllu", "d.jsonl")]
        done = run("embed", "-m", model, "-q", *files)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()] == [TOKENS[0]] * 5

    def test_options_reach_the_vectors(self, model, text, tmp_path):
        run("embed", "-m", model, "-o", tmp_path / "v.npz", "--dtype", "float16", "--boundaries", "-l", "0.5,1,2", text)
        embeddings = open_embeddings(tmp_path / "v.npz")
        expected = Embedder.load(model).embed(TOKENS, layers=[0.5, 1, 2], boundaries=True)
        assert embeddings[1].shape == (2, 12)
        np.testing.assert_array_equal(embeddings[0], expected[0].astype(np.float16))

    def test_one_of_each_is_singular(self, model):
        said = run("embed", "-m", model, text="abcdefghijklm\n").stderr
        assert "1 sentence, 1 token in" in said
        assert "note: 1 token was longer than" in said

    def test_long_tokens_are_noted(self, model):
        assert (
            "2 tokens were longer than 11 bytes"
            in run("embed", "-m", model, text="abcdefghijklm nopqrstuvwxyz\n").stderr
        )

    def test_an_interrupted_run_goes_on_where_it_was(self, tmp_path):
        """Killed in the middle, given again: the output is that of a run that was left alone."""
        save_weights(lively(tiny(encoder_width=1024)), tmp_path / "model")
        text = tmp_path / "text.txt"
        text.write_text("".join(f"sentence {n} of a longer text {n * 7} and so on\n" for n in range(4000)))
        command = [
            *ELMOFIRE,
            "embed",
            "-m",
            str(tmp_path / "model"),
            "-o",
            str(tmp_path / "v.safetensors"),
            "--layers",
            "0",
            "-q",
        ]
        process = subprocess.Popen([*command, "--pretokenized", str(text)])
        parts = tmp_path / "v.safetensors.parts"
        deadline = time.monotonic() + 120
        while not (parts / "000001.npy").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "v.safetensors").exists()
        done = subprocess.run([*command, "--pretokenized", "--json", str(text)], capture_output=True, text=True)
        summary = json.loads(done.stdout)
        assert summary["resumed"] > 0
        assert summary["sentences"] == 4000
        embeddings = open_embeddings(tmp_path / "v.safetensors")
        elmo = Embedder.load(tmp_path / "model")
        for number in (0, 1700, 3999):
            assert embeddings.tokens(number)[1] == str(number)
            np.testing.assert_allclose(
                embeddings[number], elmo.embed([embeddings.tokens(number)], layers=0)[0], rtol=1e-5, atol=1e-5
            )
        assert not parts.exists()

    def test_progress_moves_in_a_terminal_and_leaves_nothing_behind(self, tmp_path):
        (tmp_path / "text.txt").write_text("a sentence of some words\n" * 30_000)
        mine, theirs = pty.openpty()
        process = subprocess.Popen(
            [
                *ELMOFIRE,
                "embed",
                "-m",
                "random-small",
                "-o",
                str(tmp_path / "v.npz"),
                "--layers",
                "0",
                str(tmp_path / "text.txt"),
            ],
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        while chunk := _read(mine):
            seen += chunk
        assert process.wait() == 0
        moving, _, last = seen.decode().replace("\r\n", "\n").rpartition("\r")
        assert "tokens/s" in moving
        assert "left" in moving
        assert last.startswith("30,000 sentences, 150,000 tokens in")

    def test_text_may_be_typed_into_the_terminal(self, model):
        done, shown = in_terminal("embed", "-m", model, typed=b"Why not?\n\x04")
        assert done == 0
        assert "reading from the terminal, one sentence a line; end with Ctrl-D\n" in shown
        assert '{"tokens": ["Why", "not", "?"]' in shown
        assert "reading" not in in_terminal("embed", "-m", model, "-q", typed=b"Why not?\n\x04")[1]

    def test_no_line_moves_between_data_in_a_terminal(self, model, tmp_path):
        (tmp_path / "text.txt").write_text("a sentence of some words\n" * 20_000)
        done, shown = in_terminal("embed", "-m", model, "-l", "0", tmp_path / "text.txt")
        assert done == 0
        assert "\r" not in shown
        *lines, last = shown.splitlines()
        assert all(line.startswith('{"tokens": ') and line.endswith("}") for line in lines)
        assert len(lines) == 20_000
        assert last.startswith("20,000 sentences")

    @pytest.mark.parametrize("text", ["\n", "\n\n  \n"], ids=["one", "some"])
    def test_nothing_but_blank_lines_is_noted(self, model, text):
        done = run("embed", "-m", model, text=text)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, text.count("\n"))
        assert "note: all lines are blank" in done.stderr
        assert run("embed", "-m", model, "-q", text=text).stderr == ""
        assert "blank" not in run("embed", "-m", model, text=f"{text}Why?\n").stderr

    def test_interrupted_in_a_terminal_it_says_on_a_line_of_its_own_how_to_go_on(self, model, tmp_path):
        (tmp_path / "text.txt").write_text("a sentence of some words\n" * 100_000)
        program = "from elmofire.embed import job; job._PIECE_TOKENS = 2000; from elmofire.cli import main; main()"
        arguments = ["embed", "-m", str(model), "-o", str(tmp_path / "v.npz"), str(tmp_path / "text.txt")]
        mine, theirs = pty.openpty()
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=theirs)
        os.close(theirs)
        seen = b""
        while b"tokens/s" not in seen:
            seen += os.read(mine, 4096)
        process.send_signal(signal.SIGINT)
        while chunk := _read(mine):
            seen += chunk
        assert process.wait() == 130
        *_, last = seen.decode().replace("\r\n", "\n").split("\r")
        first, *_, end = last.splitlines()
        assert first == f"run the same command again to resume: what is done is kept in {tmp_path / 'v.npz.parts'}"
        assert end == "interrupted"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "text.txt", "v.npz.parts"]


class TestParagraphs:
    """A line is a sentence; where lines seem to hold several, one note says so, and nothing else changes."""

    PARAGRAPH = "It rained all day. We stayed at home. Why not?\n"

    @pytest.mark.parametrize("flags", [[], ["--pretokenized"]], ids=["text", "pretokenized"])
    @pytest.mark.parametrize("lines", [1, 3, 50])
    def test_one_note_says_what_to_do(self, model, lines, flags):
        text = (self.PARAGRAPH.replace(".", " .").replace("?", " ?") if flags else self.PARAGRAPH) * lines
        done = run("embed", "-m", model, *flags, text=text)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("note:") == done.stderr.count("several sentences") == 1
        looked_at = f"{min(lines, 20)} of the first {min(lines, 20)} lines seem" if lines > 1 else "the line seems"
        assert f"note: {looked_at} to hold several sentences" in done.stderr
        assert done.stdout == run("embed", "-m", model, *flags, "-q", text=text).stdout

    def test_what_it_says_to_do_does_it(self, model):
        said = run("embed", "-m", model, text=self.PARAGRAPH).stderr
        flags = re.search("--sentences split", said)[0].split()
        done = run("embed", "-m", model, *flags, text=self.PARAGRAPH)
        assert "note:" not in done.stderr
        sentences = "It rained all day.\nWe stayed at home.\nWhy not?\n"
        assert done.stdout == run("embed", "-m", model, text=sentences).stdout

    def test_sentences_and_a_few_lines_that_hold_two_are_nothing_to_note(self, model, tmp_path):
        text = "Dr. No lives in the U.S. now.\n\n" * 9 + "Go. Now.\n"
        assert "note:" not in run("embed", "-m", model, text=text).stderr
        row = "\t_" * 8
        (tmp_path / "a.conllu").write_text(f"1\tGo{row}\n2\t.{row}\n3\tNow{row}\n4\t.{row}\n\n")
        (tmp_path / "a.jsonl").write_text('["Go", ".", "Now", "."]\n')  # whoever wrote these knew what a sentence is
        assert "note:" not in run("embed", "-m", model, tmp_path / "a.conllu", tmp_path / "a.jsonl").stderr


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


class TestInfo:
    def test_it_describes_a_model(self, model):
        done = run("info", model, "--json")
        described = json.loads(done.stdout)
        assert (described["cells"], described["width"], described["layers"]) == (11, 12, 3)
        assert described["here"]["device"] == "cpu"
        shown = run("info", model).stdout
        assert "cells              11" in shown
        assert "penn 1 (en)" in shown
        assert "int16: off by at most 0.5% of a vector's length" in shown
        assert "not compiled for   -" not in shown

    def test_a_gpu_that_torch_cannot_use_is_no_device(self, model, monkeypatch, capsys):
        from elmofire.cli.info import info

        monkeypatch.setattr("elmofire.embed.device.cuda_devices", lambda: 1)
        monkeypatch.setattr("elmofire.embed.device.torch_sees_a_gpu", lambda: False)
        assert info.callback is not None
        info.callback(str(model), None, True, False)
        here = json.loads(capsys.readouterr().out)["here"]
        assert (here["gpus"], here["device"]) == (1, "cpu")
        assert "lstmp_on_the_gpu" not in here

    @pytest.mark.parametrize(
        ("training", "said"),
        [
            ({"held_out": "news"}, "held_out: news"),
            ({"held_out": {"forward": 3.5}, "by": ["A", "B"]}, "held_out: (forward: 3.5), by: (A, B)"),
            ({"update": 3, "held_out": {"mean": None, "unknown": "?"}}, "held_out: (mean: -, unknown: ?)"),
            ({"note": "two\nlines"}, "note: two lines"),
            (
                {"update": 1200, "held_out": {"mean": 50, "unknown": 0}},
                "update 1,200, held-out perplexity 50.0, unknown 0.0%",
            ),
        ],
        ids=str,
    )
    def test_a_training_record_of_any_kind_is_shown_in_a_line(self, tmp_path, training, said):
        save_weights(replace(lively(tiny()), training=training), tmp_path / "model")
        done = run("info", tmp_path / "model")
        assert (done.returncode, done.stderr) == (0, "")
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("  training ")]
        assert line.endswith(said)
        assert json.loads(run("info", tmp_path / "model", "--json").stdout)["training"] == training

    def test_a_pair_is_named_with_a_comma(self, model, tmp_path):
        from elmofire import load_weights

        save_weights(load_weights(model), tmp_path / "old", to="hdf5")
        done = run("info", f"{tmp_path / 'old/options.json'},{tmp_path / 'old/weights.hdf5'}", "--json")
        assert json.loads(done.stdout)["format"] == "hdf5"

    @needs_shared
    def test_a_folder_with_an_archive_and_options_for_it(self):
        folder, options = FIXTURES / "allennlp_tagger_archive", FIXTURES / "allennlp/options.json"
        without = run("info", folder, "--json")
        assert "--options FILE" in without.stderr
        done = run("info", folder, "--options", options, "--json")
        assert done.stderr == ""
        assert json.loads(done.stdout) == json.loads(without.stdout)
        assert json.loads(done.stdout)["format"] == "allennlp"


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["embed"], "<stdin>: there are no sentences in it"),
            (["info", "en-smal"], "did you mean en-small?"),
            (["embed", "-m", "random-smal"], "did you mean random-small?"),
            (["embed", "-m", "random-small", "-l", "middle"], "--layers is 'middle'"),
            (["embed", "-m", "random-small", "-l", "7"], "layers 0 to 2"),
            (["embed", "-m", "random-small", "-l", "-1"], "layers is -1, but this model has layers 0 to 2"),
            (["embed", "-m", "random-small", "-l", "0.5"], "layers has 1 mix weight, but this model has 3 layers"),
            (["embed", "-m", "random-small", "-l", "²"], "--layers is '²'"),
            (["embed", "-m", "random-small", "-l", "9" * 5000], "--layers is '999"),
            (["embed", "-m", "random-small", "-o", "vectors.txt"], "should end in .hdf5"),
            (["embed", "-m", "random-small", "-o", ""], "--output is empty"),
            (
                ["embed", "-m", "random-small", "-o", "/dev/null/a.hdf5"],
                "/dev/null/a.hdf5: cannot be written: Not a dir",
            ),
            (["embed", "-m", "random-small", "-o", "/proc/a.hdf5"], "/proc: no file can be made there"),
            (["embed", "-m", "random-small", "no-such-file.txt"], "no-such-file.txt"),
            (["embed", "-m", "random-small", "--device", "gpu"], "device is 'gpu', but should be auto, cpu or"),
            (
                ["pretrain", "tiny", "--data", "c", "-o", "run", "--device", "gpu"],
                "device is 'gpu', but should be auto",
            ),
            (["embed", "-m", "random-small", "--threads", "0"], "threads"),
            (["embed", "-m", "random-small", "--format", "pdf"], "pdf"),
            (["embed", "-m", "random-small"], "<stdin>: there are no sentences in it"),
            (["embed", "-m", "random-small", "nosuch.txt", "-o", "new/a.hdf5"], "nosuch.txt: cannot be opened"),
            (["embed", "-m", "random-small", ".", "-o", "new/a.hdf5"], "Is a directory\nhint: name the files in it"),
            (["embed", "-m", "random-small", "/dev/null", "-o", "new/a.hdf5"], "/dev/null: there are no sentences"),
            (
                ["embed", "-m", "random-small", "Why not?"],
                "hint: arguments are names of files; text comes through a pipe: echo 'Why not?' | ",
            ),
            (["elmo", "in.txt", "out.hdf5", "--all"], "here it is `embed`"),
            (["nonsense"], "nonsense"),
        ],
        ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
    )
    def test_a_mistake_is_one_error_and_exit_code_2(self, arguments, said, tmp_path):
        done = run(*arguments, text="", cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.lower().count("error:") == 1
        assert done.stdout == ""
        assert list(tmp_path.iterdir()) == []

    def test_bad_input_in_the_middle_names_the_line(self, model, tmp_path):
        (tmp_path / "text.txt").write_bytes(b"good\nb\xe4d\n")
        done = run("embed", "-m", model, "-o", tmp_path / "v.npz", tmp_path / "text.txt")
        assert done.returncode == 2
        assert "text.txt:2" in done.stderr
        assert not (tmp_path / "v.npz").exists()

    def test_a_place_that_cannot_be_written_is_an_error(self, model, text):
        done = run("embed", "-m", model, "-o", "/proc/nowhere/v.npz", text)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr

    def test_a_full_disk_under_stdout_is_an_error(self, model):
        with Path("/dev/full").open("w") as full:
            line = [*ELMOFIRE, "embed", "-m", str(model), "-q"]
            done = subprocess.run(line, input="Why not?\n" * 9, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ("--updates", "No such option '--updates'. Settings are given without dashes: updates=VALUE."),
            ("--ouput", "No such option '--ouput'. Did you mean '--output'?"),
        ],
    )
    def test_a_setting_written_as_an_option_is_told_from_a_misspelled_one(self, option, said):
        assert run("pretrain", "tiny", option, "30").stderr.splitlines()[-1] == f"Error: {said}"

    def test_debug_shows_the_traceback(self, tmp_path):
        assert "Traceback" in run("info", tmp_path, env={"ELMOFIRE_DEBUG": "1"}).stderr

    def test_interrupting_ends_with_130(self, model):
        process = subprocess.Popen(
            [*ELMOFIRE, "embed", "-m", str(model)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(3)  # till it reads
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in stderr

    def test_a_reader_that_leaves_ends_it_quietly(self, model):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*ELMOFIRE, "embed", "-m", str(model), "-q"], **pipes)
        process.stdout.close()
        process.stdin.write(b"some words here\n" * 2000)
        process.stdin.close()
        with process.stderr:
            assert process.stderr.read() == b""
        assert process.wait(timeout=60) == -signal.SIGPIPE


def test_every_command_that_loads_a_model_takes_options_for_it():
    commands = {**cli.commands, "bench embed": bench.commands["embed"]}
    names = {name: {parameter.name for parameter in command.params} for name, command in commands.items()}
    assert [name for name in names if "model" in names[name] and "options" not in names[name]] == ["finetune"]


def test_every_command_that_loads_a_model_can_be_quiet():
    commands = {**cli.commands, "bench embed": bench.commands["embed"]}
    names = {name: {parameter.name for parameter in command.params} for name, command in commands.items()}
    assert [name for name in names if "model" in names[name] and "quiet" not in names[name]] == []


@pytest.mark.parametrize("arguments", [["prepare"], ["prepare", "--help"]], ids=" ".join)
def test_the_usage_of_prepare_reads_as_it_is_typed(arguments):
    done = run(*arguments)
    assert "elmofire prepare [OPTIONS] TEXT..." in done.stdout + done.stderr
    assert "prepare  " not in done.stdout + done.stderr


def test_help_names_every_command():
    shown = run("--help").stdout
    assert "..." not in shown.partition("Commands:")[2]
    for command in ("demo", "embed", "info"):
        assert command in shown
