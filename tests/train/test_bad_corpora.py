"""What cannot be a corpus is told so at once, with file and line, and leaves nothing that looks finished."""

import json
import os
import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from elmofire.errors import DataError, ElmofireError, InputError, MissingExtra
from elmofire.train.corpus import blocks
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.sources import find_sources
from elmofire.train.processes import Processes

BAD = {
    "empty": (b"", "no sentence in"),
    "blank": (b"\n \n\t\n", "no sentence in"),
    "endless": (b"word " * 300_000, r":1: the line is longer than 1,048,576 bytes"),
    "zeros": (b"fine\n" + bytes(100), r":2: holds the byte 0"),
    "binary": (bytes(range(256)) * 100, "is no text"),
    "latin": ("one\ntwo\ncaf\u00e9\n".encode("latin1"), r":3: not UTF-8: byte 0xe9 at byte 4"),
    "utf16": ("one\n".encode("utf-16"), r":1: not UTF-8"),
    "boundary": (b"one\n<S> two </S>\n", r":2: holds <S> or </S>"),
}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_named(tmp_path, kind, processes):
    data, message = BAD[kind]
    (tmp_path / "bad.txt").write_bytes(data)
    with pytest.raises((InputError, DataError), match=message) as told:
        prepare([str(tmp_path / "bad.txt")], tmp_path / "corpus", pretokenized=True, processes=processes)
    assert "bad.txt" in str(told.value)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.txt"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("3", ":2: expected a string"),
        ('{"tokens": ["a b"]}', ":2: the token 'a b' is empty or holds white space"),
        ('{"tokens": [""]}', ":2: the token"),
        (json.dumps("x" * 1_100_000), ":2: a line of 1,100,000 characters"),
        (json.dumps("a\0b"), ":2: holds the byte 0"),
    ],
)
def test_a_bad_record_is_named(tmp_path, line, message):
    (tmp_path / "bad.jsonl").write_text('"fine"\n' + line + "\n")
    with pytest.raises(InputError, match=re.escape(message)):
        prepare([str(tmp_path / "bad.jsonl")], tmp_path / "corpus", processes=1)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("</S>\n<UNK>\na\n", "has no <S>"),
        ("a\nb\n", "has no <S> and no </S> and no <UNK>"),
        ("", "empty"),
        ("<S>\n</S>\n<UNK>\nï\n".encode("latin1"), "not utf-8"),
    ],
)
def test_a_vocabulary_without_the_specials_is_refused_before_anything_is_read(tmp_path, words, message):
    (tmp_path / "vocab.txt").write_bytes(words if isinstance(words, bytes) else words.encode())
    (tmp_path / "text.txt").write_text("a b\n")
    with pytest.raises(ElmofireError, match=message):
        prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", vocabulary=str(tmp_path / "vocab.txt"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["text.txt", "vocab.txt"]


@pytest.mark.parametrize("word", ["w 1", "w\t1"])
def test_a_vocabulary_with_counts_is_refused_before_anything_is_read(tmp_path, word):
    (tmp_path / "vocab.txt").write_text(f"<S>\n</S>\n<UNK>\na\n{word}\nv 1\n")
    (tmp_path / "text.txt").write_text("a b\n")
    with pytest.raises(InputError, match=r"vocab\.txt:5: 'w.*1' holds white space, .*\nhint: one word a line"):
        prepare([tmp_path / "text.txt"], tmp_path / "corpus", vocabulary=tmp_path / "vocab.txt", progress=never)


def test_words_of_a_vocabulary_may_hold_spaces(tmp_path):
    """As those of some treebanks do; a model that brings them along can be trained on."""
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\na\n10 000\nb\n")
    (tmp_path / "text.txt").write_text("a b\n")
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "corpus", vocabulary=tmp_path / "vocab.txt", processes=1)
    assert corpus.vocabulary.words[4] == "10 000"


@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_a_text_that_is_mostly_one_sentence_is_refused(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "a.txt").write_text("one two\n\n" * 4)
    (tmp_path / "b.txt").write_text("three\n" + "four " * 5000 + "\n" + "five\n" * 100)
    told = r"b\.txt:2: a sentence of 5,000 words, more than half of the training text\nhint: "
    with pytest.raises(DataError, match=told):
        prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "corpus", processes=1)
    assert not list(tmp_path.glob("corpus*"))
    held = prepare([tmp_path / "a.txt"], tmp_path / "held", held_out_texts={"dev": [tmp_path / "b.txt"]}, processes=1)
    assert held.table["report"]["long_sentences"]["sentences"] == 1
    (tmp_path / "b.txt").write_text("one " * 1000 + "\n")  # as long as one may be
    assert prepare([tmp_path / "b.txt"], tmp_path / "short", processes=1).train.sentences == 1


@pytest.mark.parametrize(
    ("texts", "wanted", "message"),
    [
        (["nowhere.txt"], {}, "no such file"),
        (["nowhere*.txt"], {}, "no file has such a name"),
        (["."], {}, "no text in this folder, but 1 file (a.dat)\nhint: it takes .txt and .jsonl files"),
        (["a.conllu"], {}, "CoNLL-U"),
        (["a.jsonl"], {"documents": "blocks"}, "records"),
        (["a.dat"], {"titles": "("}, "no regular expression"),
        (["a.dat"], {"vocabulary": 3}, "no room"),
        (["a.dat"], {"vocabulary": "many"}, "vocabulary is 'many', but should be a number or a file that exists"),
        (["a.dat"], {"held_out": 1.5}, "share below 1"),
        (["a.dat"], {"held_out": float("nan")}, "share below 1"),
        (["a.dat"], {"vocabulary": "vocab.txt", "min_count": 2}, "vocab.txt is taken with all its words"),
        (["a.dat"], {"ngram": 5}, "ngram is given, but no text to look for"),
        (["a.dat"], {"drop_overlaps": True}, "drop_overlaps is given, but no text to look for"),
        (["a.dat"], {"sentences": "words"}, "should be split or lines"),
        (["a.dat", "a.dat"], {}, "given twice"),
        (["hf:"], {}, "no data set"),
        (["a.dat", "-"], {}, "-: standard input cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, monkeypatch, texts, wanted, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.dat").write_text("fine\n")
    if texts != ["."]:
        (tmp_path / "a.conllu").write_text("1\tfine\n")
        (tmp_path / "a.jsonl").write_text('"fine"\n')
    with pytest.raises((InputError, DataError), match=re.escape(message)):
        prepare(texts, "corpus", **wanted, processes=1, progress=never)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("alone", [str, Path], ids=["text", "path"])
@pytest.mark.parametrize("name", ["texts", "check_against", "held_out_texts['dev']"])
def test_one_path_in_place_of_a_list_is_not_taken_letter_by_letter(tmp_path, name, alone):
    path = tmp_path / "text.txt"
    path.write_text("fine\n")
    one = alone(path)
    given = {"texts": [path], **{"texts": {"texts": one}, "check_against": {"check_against": one}}.get(name, {"held_out_texts": {"dev": one}})}  # fmt: skip
    with pytest.raises(InputError) as told:
        prepare(**given, output=tmp_path / "corpus", processes=1, progress=never)
    assert told.value.message == f"{name} is one path where a list of them belongs"
    assert told.value.hint == f"put it in a list: [{str(path)!r}]"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"min_cuont": 2}, "unknown setting `min_cuont`, did you mean `min_count`?"),
        ({"zzz": 1}, "unknown setting `zzz`, the known ones are language, pretokenized,"),
        ({"documnets": "files", "uniqe": ""}, "`documents`?; unknown setting `uniqe`, did you mean `unique`?"),
        ({"min_count": "2"}, "min_count is '2', but should be of type int"),
        ({"min_count": 0}, "min_count is 0, but should be at least 1"),
        ({"held_out": True}, "held_out is True, but should be of type float | int"),
        ({"vocabulary": True}, "vocabulary is True, but should be of type int | str"),
        ({"processes": 0}, "processes is 0, but should be at least 1"),
        ({"texts": [b"text.txt"]}, "the path b'text.txt' is given as bytes, but should be text"),
        ({"vocabulary": 1e5}, "vocabulary is 100000.0, but should be of type int | str"),
        ({"unique": None, "held_out": "1%"}, "unique is None, but should be of type str; held_out is '1%'"),
    ],
)
def test_settings_that_are_none_or_of_another_type_are_named_all_at_once(tmp_path, wanted, message):
    (tmp_path / "text.txt").write_text("fine\n")
    given = {"texts": [tmp_path / "text.txt"], "processes": 1, **wanted}
    with pytest.raises(InputError, match=re.escape(message)):
        prepare(output=tmp_path / "corpus", progress=never, **given)
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def never(sentences, tokens):
    pytest.fail("text was tokenized before its settings were looked at")


@pytest.mark.parametrize("lines", ["", " \n\n", "= Title =\n"])
@pytest.mark.parametrize("others", [(), ("more.txt",)])
def test_a_split_without_a_sentence_is_told_before_the_text_is_read(tmp_path, lines, others):
    (tmp_path / "text.txt").write_text("fine\n")
    (tmp_path / "more.txt").write_text("fine too\n")
    (tmp_path / "empty.txt").write_text(lines)
    given = {"dev": [str(tmp_path / name) for name in ("empty.txt", *others)]}
    call = partial(prepare, [str(tmp_path / "text.txt")], tmp_path / "corpus", titles="^=", processes=1)
    if others:  # the split is not empty then
        assert call(held_out_texts=given).heldout["dev"].sentences == 1
        return
    with pytest.raises(DataError, match=r"no sentence in .*empty\.txt, the text of the split dev\nhint: "):
        call(held_out_texts=given, progress=never)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty.txt", "more.txt", "text.txt"]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_extra_that_is_missing_is_told_before_the_text_is_read_and_nothing_is_left(tmp_path, monkeypatch, processes):
    monkeypatch.setitem(sys.modules, "bz3", None)
    names = ["a.txt", "b.txt.bz3"]
    for name in names:
        (tmp_path / name).write_text("fine\n")
    texts = [str(tmp_path / name) for name in names]
    with pytest.raises(MissingExtra, match=r"b\.txt\.bz3: reading \.bz3 files needs an extra"):
        prepare(texts, tmp_path / "corpus", processes=processes, progress=never)
    assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_a_prepared_corpus_is_no_text(tmp_path):
    (tmp_path / "text.txt").write_text("fine\n")
    prepare([str(tmp_path)], tmp_path / "corpus", processes=1)
    with pytest.raises(
        InputError,
        match=r"(?s)corpus: is a corpus that was prepared already\nhint: .*data=.*corpus.*--data .*corpus\) ",
    ):
        prepare([str(tmp_path / "corpus")], tmp_path / "again", processes=1)
    assert not list(tmp_path.glob("again*"))
    prepare([str(tmp_path)], tmp_path / "corpus", processes=1)  # the same again: the one inside is left out
    (tmp_path / "corpus.json").write_text("{}")  # somebody else's
    with pytest.warns(UserWarning, match="corpus.json"):
        assert prepare([str(tmp_path)], tmp_path / "other", processes=1).train.sentences == 1


def test_two_at_once_are_told_what_to_do(tmp_path):
    (tmp_path / "text.txt").write_text("fine\n")
    with FileLock(tmp_path / "corpus.lock"), pytest.raises(DataError, match=r"another process .*\nhint: wait"):
        prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", processes=1)


def test_bad_evaluation_text_is_told_before_the_text_is_read(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"never read: \xff\n")
    (tmp_path / "eval.txt").write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"eval\.txt:1: not UTF-8"):
        prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", check_against=(str(tmp_path / "eval*"),))


def test_no_sentence_left_is_an_error(tmp_path):
    (tmp_path / "text.txt").write_text("one two three\n")
    wanted = {"check_against": (str(tmp_path / "other.txt"),), "ngram": 2, "drop_overlaps": True}
    (tmp_path / "other.txt").write_text("one two\n")
    with pytest.raises(DataError, match="no sentence is left"):
        prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", **wanted, processes=1)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "text.txt").write_text("one\n")
    with pytest.raises(DataError, match="cannot be written"):
        prepare([str(tmp_path / "text.txt")], tmp_path / "file/corpus", processes=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_ends_it_with_one_line_and_the_same_line_goes_on(tmp_path, processes):
    (tmp_path / "text.txt").write_text("".join(f"some words and number {n}\n" for n in range(20_000)))
    command = [sys.executable, "-m", "elmofire", "prepare", str(tmp_path / "text.txt"), "-q", "-o", str(tmp_path / "c")]
    command += ["--processes", str(processes)]

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "c").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "c/corpus.json").is_file()


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path):
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.txt"))
    file.write_text("one two\n")
    (tmp_path / "text.txt").write_text("one two\n")
    for texts, wanted in (([file], {}), ([tmp_path], {}), ([tmp_path / "text.txt"], {"check_against": [file]})):
        with pytest.raises(InputError, match=r"\\udcff\\udcfe.txt': the name is not utf-8\nhint: rename"):
            prepare(texts, tmp_path / "corpus", **wanted, processes=1)
    assert not list(tmp_path.glob("corpus*"))


def test_a_worker_that_is_killed_is_told_as_such(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("one two\n")

    def killed(self, function, arguments):
        raise ChildProcessError("a worker process ended: was it killed, or is memory short?")

    monkeypatch.setattr(Processes, "_call", killed)
    with pytest.raises(DataError, match=r"corpus: a worker process ended: .*\nhint: what is done so far is in"):
        prepare([tmp_path / "text.txt"], tmp_path / "corpus", processes=2)


def test_a_worker_that_is_killed_is_an_error_not_a_wait():
    with Processes(2) as processes:
        for process in processes._started:
            process.kill()
            process.wait()
        with pytest.raises(ChildProcessError, match="worker process ended"):
            list(processes.map(len, [("a",), ("b",)]))


def test_what_is_wrong_and_what_to_do_are_told_apart_also_by_another_process():
    with Processes(2) as processes, pytest.raises(InputError) as told:
        list(processes.map(find_sources, [(["-"],)]))
    assert told.value.message.startswith("-: standard input cannot be read")
    assert told.value.hint.startswith("write it to a file first")
    assert str(told.value) == f"{told.value.message}\nhint: {told.value.hint}"
    assert (DataError("broken").message, DataError("broken").hint, str(DataError("broken"))) == ("broken", "", "broken")


def test_results_come_in_order_and_errors_as_they_were():
    with Processes(2) as processes:
        assert list(processes.map(int, [(str(n),) for n in range(50)])) == list(range(50))
    with Processes(2) as processes, pytest.raises(ValueError, match="invalid literal"):
        list(processes.map(int, [("1",), ("x",), ("3",)]))
