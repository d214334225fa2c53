"""`elmofire prepare` from a shell: what it prints, and what it exits with."""

import json
import subprocess
import sys

import pytest

from elmofire.train.corpus.reader import Corpus


def elmofire(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "elmofire", *arguments], cwd=cwd, capture_output=True, text=True)


def test_a_corpus_is_made_packed_and_unpacked(tmp_path):
    (tmp_path / "text.txt").write_text("= A =\nOne fish, two fish.\n\n= B =\nRed fish.\n\n= C =\nBlue fish.\n")
    (tmp_path / "dev.txt").write_text("No fish.\n")
    options = ["--documents", "blocks", "--titles", "^= ", "--held-out", "test=1", "--held-out-text", "dev=dev.txt"]
    done = elmofire("prepare", "text.txt", "--output", "corpus", *options, "--vocabulary", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["train", "dev", "test"]
    again = elmofire("prepare", "text.txt", "-o", "corpus", *options, "--vocabulary", "5", "--json", cwd=tmp_path)
    table = json.loads(again.stdout)
    assert table["splits"]["dev"]["tokens"] == 3
    assert (table["vocabulary"], table["splits"]["test"]["documents"]) == (5, 1)
    packed = elmofire("prepare", "pack", "corpus", "archive", "--piece", "8 kB", "--json", cwd=tmp_path)
    assert json.loads(packed.stdout)["pieces"] == len(list((tmp_path / "archive").iterdir()))
    assert elmofire("prepare", "unpack", "archive", "back", cwd=tmp_path).returncode == 0
    assert Corpus.open(tmp_path / "back").table == Corpus.open(tmp_path / "corpus").table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["text.txt"], "--output"),
        (["-o", "corpus"], "TEXT"),
        (["-", "-o", "corpus"], "error: -: standard input cannot be read"),
        (["nowhere.txt", "-o", "corpus"], "error: nowhere.txt: no such file"),
        (["text.txt", "-o", "corpus", "--held-out", "few"], "error: --held-out is 'few'"),
        (["text.txt", "-o", "corpus", "--held-out", "nan"], "error: --held-out is 'nan'"),
        (["text.txt", "-o", "corpus", "--held-out", "100%"], "error: held_out is 1.0"),
        (["text.txt", "-o", "corpus", "--language", "English"], "error: language is 'English', but should be a code"),
        (["text.txt", "-o", "corpus", "--drop-overlaps"], "error: drop_overlaps is given"),
        (["text.txt", "-o", "corpus", "--held-out-text", "dev"], "error: --held-out-text is 'dev'"),
        (
            ["text.txt", "-o", "corpus", "--vocabulary", "-5"],
            "error: vocabulary is '-5', but should be a number or a file",
        ),
        (["pack", "nowhere", "archive"], "error: nowhere: is no prepared corpus"),
        (["pack", "nowhere", "archive", "--piece", "big"], "error: --piece is 'big'"),
        (["unpack", "nowhere", "corpus"], "error: nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    (tmp_path / "text.txt").write_text("one\n")
    done = elmofire("prepare", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_what_is_probably_not_meant_is_noted(tmp_path):
    (tmp_path / "text.txt").write_text("one two\n" * 1000 + "one " * 2000 + "\n")
    line = ("prepare", "text.txt", "-o", "corpus", "--language", "xx", "--pretokenized", "--min-count", "2")
    done = elmofire(*line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    notes = [said for said in done.stderr.splitlines() if said.startswith("note: ")]
    assert [note.partition(":")[2].partition(":")[0] for note in notes] == [
        " 'xx' is no language code such as 'de'",
        " a sentence has more than 1,000 words (the first in text.txt",
        " every word of the training text is in the vocabulary, so a model would not learn what <UNK> is",
    ]
    assert "the tokenizer whitespace 1" in notes[0]
    assert "tokenizer   whitespace 1, language xx" in done.stdout
    quiet = elmofire(*line, "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_a_file_may_be_called_like_a_verb(tmp_path):
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "pack").write_text("two\n")
    assert elmofire("prepare", "text", "./pack", "-o", "corpus", "-q", cwd=tmp_path).returncode == 0
    assert len(Corpus.open(tmp_path / "corpus").train) == 2
