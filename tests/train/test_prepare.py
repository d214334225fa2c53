"""A prepared corpus is what a slow loop makes of the same text, whatever the blocks, processes, files and compression."""

import ast
import contextlib
import gzip
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import types
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.slow_corpus import SlowCorpus, contents, documents_of

from elmofire.errors import DataError, InputError
from elmofire.text.characters import character_ids
from elmofire.text.tokenizers import TokenizerInfo, tokenizer_for
from elmofire.train.archive.packing import pack
from elmofire.train.corpus import blocks, shards
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.reader import Corpus
from elmofire.train.corpus.report import (
    covered_note,
    language_note,
    long_sentences_note,
    report_lines,
    unknown_note,
)
from elmofire.train.corpus.settings import CorpusSettings

WORDS = [
    "the",
    "cat",
    "Cat",
    "sat",
    "on",
    "a",
    "mat",
    "naïve",
    "日本語",
    "x" * 60,
    ".",
    ",",
    "<UNK>",
    "\u200b!",
    "1990s",
]


def random_documents(count: int, seed: int, words: list[str] = WORDS) -> list[list[list[str]]]:
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [[rng.choices(words, weights, k=rng.randint(1, 12)) for _ in range(rng.randint(1, 6))] for _ in range(count)]


def as_blocks(documents: list[list[list[str]]]) -> str:
    return "\n".join("".join(" ".join(sentence) + "\n" for sentence in document) for document in documents)


def check(corpus: Corpus, train, others, size: int) -> None:
    slow = SlowCorpus(train, others, size)
    assert documents_of(corpus.train, corpus) == train
    everything = np.arange(corpus.words)
    assert corpus.spellings(everything) == slow.words
    assert corpus.vocabulary.words == slow.vocabulary
    assert corpus.counts.tolist() == [slow.counts.get(word, 0) for word in slow.words]
    listed = {word: number for number, word in enumerate(slow.vocabulary)}
    assert corpus.targets(everything).tolist() == [listed.get(word, 2) for word in slow.words]
    np.testing.assert_array_equal(corpus.character_ids(everything), character_ids(slow.words))
    assert corpus.train.lengths.tolist() == [len(sentence) for document in train for sentence in document]
    corpus.verify()


@pytest.mark.parametrize("block_bytes", [40, 1000, 1 << 20])
@pytest.mark.parametrize("shard_tokens", [50, 1 << 20])
def test_a_corpus_is_what_a_slow_loop_makes(tmp_path, monkeypatch, block_bytes, shard_tokens):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(shards, "SHARD_TOKENS", shard_tokens)
    train, held_out = random_documents(40, seed=1), random_documents(5, seed=2, words=[*WORDS, "unseen", "zebra"])
    (tmp_path / "train.txt").write_text(as_blocks(train), encoding="utf-8")
    (tmp_path / "other.txt").write_text(as_blocks(held_out), encoding="utf-8")
    corpus = prepare(
        [str(tmp_path / "train.txt")],
        tmp_path / "corpus",
        pretokenized=True,
        documents="blocks",
        vocabulary=9,
        held_out_texts={"other": [str(tmp_path / "other.txt")]},
        processes=1,
    )
    check(corpus, train, held_out, 9)
    assert documents_of(corpus.heldout["other"], corpus) == held_out
    unknown = [word for document in held_out for sentence in document for word in sentence]
    expected = sum(word not in corpus.vocabulary or word == "<UNK>" for word in unknown) / len(unknown)
    assert corpus.table["splits"]["other"]["unknown"] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=1, max_size=5), min_size=1),
    st.integers(4, 20),
    st.sampled_from([30, 1 << 20]),
)
def test_any_documents_come_back(tmp_path_factory, documents, size, block_bytes):
    folder = tmp_path_factory.mktemp("any")
    (folder / "text.txt").write_text(as_blocks(documents), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        wanted = {"pretokenized": True, "documents": "blocks", "vocabulary": size}
        corpus = prepare([str(folder / "text.txt")], folder / "corpus", **wanted, processes=1)
    check(corpus, documents, [], size)


@pytest.mark.parametrize("block_bytes", [10, 1 << 20])
def test_raw_lines_are_split_into_sentences_and_those_of_the_wish_are_not(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "text.txt").write_text("Mr. Bell left. Why?\nNobody knows.\n\nOne. Two. Three.\n")
    lines = [["Mr.", "Bell", "left", ".", "Why", "?"], ["Nobody", "knows", "."]]
    split = [lines[0][:4], lines[0][4:], lines[1]]
    numbers = ["One", ".", "Two", ".", "Three", "."]
    for sentences, expected in {
        "split": [split, [numbers[:2], numbers[2:4], numbers[4:]]],
        "lines": [lines, [numbers]],
    }.items():
        wanted = {"documents": "blocks", "sentences": sentences}
        corpus = prepare([str(tmp_path / "text.txt")], tmp_path / sentences, **wanted, processes=1)
        assert documents_of(corpus.train, corpus) == expected
        assert corpus.table["sentences"] == {"rules": 1 if sentences == "split" else None}
    (tmp_path / "text.jsonl").write_text('{"tokens": ["One.", "Two."]}\n{"text": "One. Two."}\n')
    corpus = prepare([str(tmp_path / "text.jsonl")], tmp_path / "records", processes=1)
    assert documents_of(corpus.train, corpus) == [[["One.", "Two."]], [["One", "."], ["Two", "."]]]
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "tokens", pretokenized=True, processes=1)
    assert (corpus.train.sentences, corpus.table["sentences"]) == (3, {"rules": None})


def test_many_sentences_are_gathered_as_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 60)
    (tmp_path / "text.txt").write_text(as_blocks(random_documents(30, seed=3)), encoding="utf-8")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", pretokenized=True, processes=1)
    assert len(corpus.train.shards) > 3
    rng = np.random.default_rng(4)
    for numbers in (
        rng.permutation(len(corpus.train)),
        rng.integers(0, len(corpus.train), 7),
        np.zeros(0, int),
        [5, 5],
    ):
        ids, lengths = corpus.train.gather(numbers)
        one_by_one = [corpus.train.sentence(int(number)) for number in numbers]
        assert lengths.tolist() == [len(sentence) for sentence in one_by_one]
        assert ids.tolist() == [word for sentence in one_by_one for word in sentence.tolist()]
    for wrong in (-1, len(corpus.train)):
        with pytest.raises(IndexError):
            corpus.train.sentence(wrong)
        with pytest.raises(IndexError):
            corpus.train.gather([0, wrong])


def test_the_same_bytes_from_any_number_of_processes_and_any_blocks(tmp_path, monkeypatch):
    for number in range(3):
        text = as_blocks(random_documents(60, seed=number))
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    wanted = {"documents": "blocks", "held_out": 0.2, "unique": "sentences", "vocabulary": 12}
    found = []
    for number, (processes, block_bytes) in enumerate([(1, 300), (1, 300), (2, 300), (3, 5000)]):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        prepare([str(tmp_path / "*.txt")], tmp_path / f"c{number}", **wanted, processes=processes)
        found.append(contents(tmp_path / f"c{number}"))
    assert found[0] == found[1] == found[2] == found[3]


def test_english_is_split_as_the_treebank_does(tmp_path):
    (tmp_path / "text.txt").write_text("I can't stop (it's Dr. Who's).\n")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", processes=1)
    words = corpus.spellings(corpus.train.sentence(0))
    assert words == tokenizer_for("en").words("I can't stop (it's Dr. Who's).")
    assert words[:3] == ["I", "ca", "n't"]
    assert (corpus.tokenizer.name, corpus.tokenizer.language) == ("penn", "en")


def test_every_kind_of_file_gives_the_same_sentences(tmp_path):
    lines = [" ".join(sentence) for document in random_documents(20, seed=5) for sentence in document]
    data = "".join(f"{line}\n" for line in lines).encode()
    written = {
        "plain.txt": data,
        "a.txt.gz": gzip.compress(data),
        "b.txt.xz": lzma.compress(data),
        "c.jsonl": "".join(json.dumps({"text": line}) + "\n" for line in lines).encode(),
        "d.jsonl.gz": gzip.compress("".join(json.dumps({"tokens": line.split()}) + "\n" for line in lines).encode()),
        "e.ndjson": (json.dumps("\n".join(lines)) + "\n").encode(),
    }
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    ids = [
        prepare([str(tmp_path / name)], tmp_path / f"{name}.corpus", pretokenized=True, processes=1)
        .train.gather(range(len(lines)))[0]
        .tolist()
        for name in written
    ]
    assert all(found == ids[0] for found in ids)
    assert len(ids[0]) == sum(len(line.split()) for line in lines)


@pytest.mark.parametrize(("module", "name"), [("bz3", "text.txt.bz3"), ("backports.zstd", "text.txt.zst")])
def test_files_of_the_extra_are_read(tmp_path, module, name):
    compress = pytest.importorskip(module).compress
    data = b"one sentence\nanother one\n" * 1000
    (tmp_path / name).write_bytes(compress(data, 1 << 17) if module == "bz3" else compress(data))
    corpus = prepare([str(tmp_path / name)], tmp_path / "corpus", processes=1)
    assert (len(corpus.train), corpus.train.tokens) == (2000, 4000)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-5])
    with pytest.raises(InputError, match="truncated"):
        prepare([str(tmp_path / name)], tmp_path / "other", processes=1)


def test_folders_and_patterns_are_read_by_name(tmp_path):
    for name, text in {
        "b/2.txt": "two",
        "a.txt": "one",
        "c.jsonl": '"three"',
        ".hidden.txt": "no",
    }.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(text)
    corpus = prepare([str(tmp_path / "texts")], tmp_path / "corpus", processes=1)
    assert documents_of(corpus.train, corpus) == [[["one"]], [["two"]], [["three"]]]
    corpus = prepare([str(tmp_path / "texts/**/*.txt")], tmp_path / "other", processes=1)
    assert documents_of(corpus.train, corpus) == [[["one"]], [["two"]]]


def test_compressed_files_of_a_folder_are_text_unless_their_names_say_otherwise(tmp_path):
    for name in (
        "a.gz",
        "news-00012.gz",
        "news.2007.en.gz",
        "v1.2.xz",
        "c.txt.gz",
        "no.tar.gz",
        "no.csv.bz2",
        ".no.gz",
        "no.json.zst",
    ):
        pack = {"gz": gzip.compress, "xz": lzma.compress}.get(name.rpartition(".")[2], bytes)
        (tmp_path / name).write_bytes(pack(name.encode()))
    with pytest.warns(
        UserWarning, match=r"4 files \(news\.2007\.en\.gz, no\.csv\.bz2, no\.json\.zst, \.\.\.\) left out"
    ):
        corpus = prepare([tmp_path], tmp_path / "corpus", pretokenized=True, processes=1)
    assert documents_of(corpus.train, corpus) == [[["a.gz"]], [["c.txt.gz"]], [["news-00012.gz"]], [["v1.2.xz"]]]


def test_what_is_left_out_of_a_folder_is_told_and_how_to_take_it(tmp_path):
    (tmp_path / "texts/more").mkdir(parents=True)
    for name in ("a.txt", "README.md", "news.en-00001-of-00100", "LICENSE", ".hidden"):
        (tmp_path / "texts" / name).write_text(name)
    others = (
        r"texts: 3 files \(LICENSE, README.md, news.en-00001-of-00100\) left out: it takes .txt .*; '.*/texts/\*' takes"
    )
    with pytest.warns(UserWarning, match=others):
        assert prepare([tmp_path / "texts"], tmp_path / "corpus", processes=1).train.sentences == 1
    assert prepare([tmp_path / "texts/*"], tmp_path / "all", processes=1).train.documents == 4
    (tmp_path / "texts/more/b").write_text("b")
    with pytest.warns(UserWarning, match=r"4 files .*; '.*/texts/\*\*' takes"):
        prepare([tmp_path / "texts"], tmp_path / "corpus", processes=1)
    assert prepare([tmp_path / "texts/**"], tmp_path / "deep", processes=1).train.documents == 5


def test_a_name_that_is_not_utf8_can_be_told_too(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with pytest.warns(UserWarning, match=r"1 file \(\\xff\) left out"):
        prepare([tmp_path], tmp_path / "corpus", processes=1)


def test_what_a_killed_run_has_left_in_a_folder_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "corpus.parts/corpus").mkdir(parents=True)
    (tmp_path / "corpus.parts/manifest.json").write_text("[]")
    (tmp_path / "corpus.parts/corpus/vocab.txt").write_text("<S>")
    assert prepare([tmp_path], tmp_path / "corpus", processes=1).train.sentences == 1


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("files", [[["a"], ["b"], ["c"]], [["d"]]]),
        ("auto", [[["a"], ["b"], ["c"]], [["d"]]]),
        ("blocks", [[["a"], ["b"]], [["c"]], [["d"]]]),
        ("records", [[["a"]], [["b"]], [["c"]], [["d"]]]),
    ],
)
def test_documents_are_what_they_are_said_to_be(tmp_path, documents, expected):
    (tmp_path / "1.txt").write_text("= One =\na\nb\n\n\n= Two =\n\nc\n")
    (tmp_path / "2.txt").write_text("d")
    wanted = {"documents": documents, "titles": "^= .* =$"}
    corpus = prepare([str(tmp_path / "*.txt")], tmp_path / "corpus", **wanted, processes=1)
    assert documents_of(corpus.train, corpus) == expected
    assert corpus.train.documents == len(expected)


def test_a_data_set_of_the_hub_is_read_row_by_row(tmp_path, monkeypatch):
    rows = [{"title": "t", "body": "one two\nthree"}, {"title": "t", "body": "four"}]
    asked = []

    def load_dataset(name, config, *, split, streaming):
        asked.append((name, config, split, streaming))
        return iter(rows)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    corpus = prepare(["hf:owner/name:small@test#body"], tmp_path / "corpus", processes=1)
    assert documents_of(corpus.train, corpus) == [[["one", "two"], ["three"]], [["four"]]]
    assert asked == [("owner/name", "small", "test", True)]

    def broken_off():
        yield rows[0]
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda *_, **__: broken_off())
    with pytest.raises(InputError, match="hf:owner/name#body: cannot be read on after 1 rows: reset by peer"):
        prepare(["hf:owner/name#body"], tmp_path / "other", processes=1)
    assert not (tmp_path / "other.parts").exists()  # nothing was done yet
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    with pytest.raises(InputError, match="no text in column 'text'"):
        prepare(["hf:owner/name"], tmp_path / "other", processes=1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        prepare(["hf:owner/name"], tmp_path / "other", processes=1)


@pytest.mark.filterwarnings("default")  # the library has its own
def test_data_sets_are_read_by_the_library_itself_where_it_is_installed(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    rows = [{"title": "t", "body": "one two\nthree"}, {"title": "t", "body": "four"}]
    made = datasets.Dataset.from_list(rows)
    made.save_to_disk(tmp_path / "disk")
    datasets.DatasetDict({"train": made, "test": made.select([1])}).save_to_disk(tmp_path / "splits")
    (tmp_path / "streamed").mkdir()
    made.to_parquet(tmp_path / "streamed/train.parquet")
    for name, expected in {
        "disk": [[["one", "two"], ["three"]], [["four"]]],
        "splits@test": [[["four"]]],
        "streamed": [[["one", "two"], ["three"]], [["four"]]],
    }.items():
        corpus = prepare([f"hf:{tmp_path / name}#body"], tmp_path / f"corpus of {name}", processes=1)
        assert documents_of(corpus.train, corpus) == expected


def test_what_was_prepared_of_a_data_set_outlives_a_broken_network(tmp_path, monkeypatch):
    body = "one two three\n" * 100_000

    def rows(fails):
        for number in range(5):
            if fails and number == 4:
                raise ConnectionError("reset by peer")
            yield {"text": f"{body}{number}\n"}

    def prepared(folder, *, fails=False, refused=False):
        def load_dataset(*_, **__):
            if refused:
                raise ConnectionError("no route")
            return rows(fails)

        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
        return prepare(["hf:owner/name"], tmp_path / folder, pretokenized=True, processes=1)

    with pytest.raises(InputError, match="after 4 rows: reset by peer\nhint: run the same command again to resume"):
        prepared("broken", fails=True)
    with pytest.raises(InputError, match="cannot be loaded: no route"):
        prepared("broken", refused=True)
    made = {file: file.stat().st_mtime_ns for file in (tmp_path / "broken.parts/blocks").rglob("*")}
    with pytest.raises(InputError, match="after 4 rows"):
        prepared("broken", fails=True)
    assert made
    assert made == {file: file.stat().st_mtime_ns for file in (tmp_path / "broken.parts/blocks").rglob("*")}
    resumed, whole = prepared("broken"), prepared("whole")
    assert [file.read_bytes() for file in sorted(resumed.folder.rglob("*.npy"))] == [
        file.read_bytes() for file in sorted(whole.folder.rglob("*.npy"))
    ]
    assert resumed.train.tokens == whole.train.tokens == 5 * 300_001


def test_a_given_vocabulary_keeps_its_order(tmp_path):
    (tmp_path / "vocab.txt").write_text("<UNK>\nmat\n<S>\n</S>\nnever\nthe\n")
    (tmp_path / "text.txt").write_text("the the cat mat\n")
    corpus = prepare(
        [str(tmp_path / "text.txt")], tmp_path / "corpus", vocabulary=str(tmp_path / "vocab.txt"), processes=1
    )
    assert corpus.targets(corpus.train.sentence(0)).tolist() == [5, 5, 0, 1]
    assert corpus.targets([0, 1, 2]).tolist() == [2, 3, 0]
    assert corpus.table["report"]["words"]["coverage"] == 0.75


def test_paths_may_be_objects_and_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, text in {"text.txt": "one two\n", "dev.txt": "two\n", "eval.txt": "one\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ntwo\n")
    tables = []
    for place in (str, Path, lambda path: f"~/{Path(path).name}"):
        text, dev, check, words, corpus = (
            place(f"{tmp_path}/{name}") for name in ("text.txt", "dev.txt", "eval.txt", "vocab.txt", "corpus")
        )
        options = {"held_out_texts": {"dev": [dev]}, "check_against": [check], "ngram": 1, "vocabulary": words}
        made = prepare([text], corpus, processes=1, **options)
        assert Corpus.open(corpus).folder == made.folder == tmp_path / "corpus"
        tables.append(made.table)
        shutil.rmtree(tmp_path / "corpus")
    assert tables[0] == tables[1] == tables[2]
    assert tables[0]["vocabulary"] == 4


def test_patterns_may_begin_at_home_and_texts_may_come_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = prepare(iter(["~/*.txt"]), tmp_path / "corpus", processes=1)
    assert documents_of(corpus.train, corpus) == [[["a"]], [["b"]]]


def test_what_each_setting_is_by_default_is_in_the_help():
    told = dict(
        re.findall(r"\b(\w+)=([^\s;]+)", prepare.__doc__.partition("if it is not given:")[2].partition(">>>")[0])
    )
    assert {name: ast.literal_eval(value) for name, value in told.items()} == {
        **{field.name: field.default for field in fields(CorpusSettings)},
    }


ORDERED = [f"w{n}" for n in range(80)]
MANY = "".join(" ".join([word] * (200 // rank)) + "\n" for rank, word in enumerate(ORDERED, 1))


@pytest.mark.parametrize("order", ["falling", "nearly", "rising", "alphabet"])
def test_a_given_vocabulary_that_is_not_by_frequency_is_told(tmp_path, order):
    words = {"rising": ORDERED[::-1], "alphabet": sorted(ORDERED, key=lambda word: word[::-1])}.get(order, ORDERED)
    words = (
        [word for pair in zip(words[1::2], words[::2], strict=True) for word in pair] if order == "nearly" else words
    )
    (tmp_path / "vocab.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *words, "unseen"]))
    (tmp_path / "text.txt").write_text(MANY)
    wanted = {"vocabulary": str(tmp_path / "vocab.txt")}
    with contextlib.ExitStack() as stack:
        if order in ("rising", "alphabet"):
            stack.enter_context(
                pytest.warns(UserWarning, match=r"vocab\.txt: the words do not stand by falling frequency")
            )
        corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", **wanted, processes=1)
    found = corpus.table["report"]["words"]["vocabulary_order"]
    assert found == 1 if order == "falling" else (0.5 < found < 1) == (order == "nearly")


def test_a_vocabulary_of_its_own_is_by_frequency(tmp_path):
    (tmp_path / "text.txt").write_text(MANY)
    for number, size in enumerate((4, 20, 100)):
        corpus = prepare([str(tmp_path / "text.txt")], tmp_path / str(number), vocabulary=size, processes=1)
        assert corpus.table["report"]["words"]["vocabulary_order"] == 1


def test_rare_words_stay_out_of_the_vocabulary_when_asked(tmp_path):
    (tmp_path / "text.txt").write_text("a a a b b c\n")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", min_count=2, processes=1)
    assert corpus.vocabulary.words == ["<S>", "</S>", "<UNK>", "a", "b"]


def test_the_report_counts_what_a_loop_counts(tmp_path):
    sentences = [["a"] * n for n in (1, 2, 3, 4, 100)] + [["b", "é" * 24, "é" * 25, "y" * 49, "y" * 49]]
    (tmp_path / "text.txt").write_text("".join(" ".join(s) + "\n" for s in sentences), encoding="utf-8")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", pretokenized=True, processes=1)
    words = corpus.table["report"]["words"]
    assert (words["types"], words["seen_once"]) == (5, 3)
    assert (words["types_over_48_bytes"], words["tokens_over_48_bytes"], words["longest_word_bytes"]) == (2, 3, 50)
    assert corpus.table["splits"]["train"]["length"] == {"median": 3, "99%": 100, "longest": 100}


@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_sentences_that_are_none_are_counted_and_the_first_is_named(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "a.txt").write_text("one\n\n" + "two " * 1000 + "\n")  # as long as one may be
    (tmp_path / "b.txt").write_text("three\n\n" + "four " * 1001 + "\nfive\n" + "six " * 2000 + "\n")
    settings_ = {"pretokenized": True}
    short = prepare([str(tmp_path / "a.txt")], tmp_path / "short", **settings_, processes=1)
    assert "long_sentences" not in short.table["report"]
    assert long_sentences_note(short.table) is None
    both = prepare([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], tmp_path / "both", **settings_, processes=1)
    assert both.table["report"]["long_sentences"] == {"sentences": 2, "first": f"{tmp_path / 'b.txt'}:3"}
    assert long_sentences_note(both.table).startswith("2 sentences have more than 1,000 words (the first in ")


@pytest.mark.parametrize("unknown", [50, 51])
def test_a_text_that_is_mostly_unknown_is_told(tmp_path, unknown):
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\none\n")
    (tmp_path / "text.txt").write_text("two " * unknown + "one " * (100 - unknown) + "\n")
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "corpus", vocabulary=tmp_path / "vocab.txt", processes=1)
    told = unknown_note(corpus.table)
    assert told.startswith("51% of the training tokens are not in the vocabulary") if unknown > 50 else told is None


@pytest.mark.parametrize(
    ("text", "wanted", "told"),
    [
        ("a a b\n", {}, "min_count=2 (--min-count 2) leaves out words"),
        ("a a b b\n", {}, "would not learn what <UNK> is"),
        ("a a b b\n", {"min_count": 2}, "would not learn what <UNK> is"),
        ("a a b\n", {"min_count": 2}, None),
        ("a a b\n", {"vocabulary": 4}, None),
    ],
)
def test_a_vocabulary_that_leaves_nothing_out_is_told_with_a_way_that_would(tmp_path, text, wanted, told):
    (tmp_path / "text.txt").write_text(text)
    found = covered_note(prepare([tmp_path / "text.txt"], tmp_path / "corpus", **wanted, processes=1).table)
    assert found.endswith(told) or told in found if told else found is None
    assert not found or ("min_count" in found) == ("min_count" in told)


def test_the_report_counts_one_of_a_thing(tmp_path):
    (tmp_path / "text.txt").write_text("x" * 60 + "\n")
    told = "\n".join(report_lines(prepare([tmp_path / "text.txt"], tmp_path / "corpus", processes=1).table))
    assert "words       1 type, 1 of them once\n" in told
    assert "long words  1 token over 48 bytes (1 type); the longest has 60\n" in told


def test_a_language_that_is_none_is_told_and_others_are_not():
    for language in ("en", "EN", "zh-Hant", "pt_BR", "deu", "gsw", "und", ""):
        assert language_note(TokenizerInfo("icu", language, 1)) is None
    for language in ("xx", "english", "e", "d3", "xx-XX"):
        assert f"{language!r} is no language code" in language_note(TokenizerInfo("icu", language, 1))
        assert "icu 1" in language_note(TokenizerInfo("icu", language, 1))


def test_a_corpus_that_is_there_is_not_made_again_nor_overwritten(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("one two\n")
    prepare([str(text)], tmp_path / "corpus", processes=1)
    before = (tmp_path / "corpus/corpus.json").stat().st_mtime_ns
    prepare([str(text)], tmp_path / "corpus", processes=1)
    assert (tmp_path / "corpus/corpus.json").stat().st_mtime_ns == before
    wanted = {"vocabulary": 4, "unique": "sentences"}
    told = "made in another way is there: vocabulary is 4 now and was 100000, unique is 'sentences' now and was ''\n"
    with pytest.raises(DataError, match=told):
        prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    text.write_text("one two six\n")
    with pytest.raises(
        DataError, match=r"there: \S*text\.txt is train text of 12 bytes now and was train text of 8 bytes\n"
    ):
        prepare([str(text)], tmp_path / "corpus", processes=1)
    text = text.rename(tmp_path / "b.txt")
    with pytest.raises(
        DataError, match=r"b\.txt is train text of 12 bytes now and was not given, \S*text\.txt is not given now"
    ):
        prepare([text], tmp_path / "corpus", processes=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(DataError, match="no prepared corpus"):
        prepare([str(text)], tmp_path / "mine", processes=1)


def test_preparing_needs_no_torch():
    program = "import sys, elmofire.train.corpus.prepare, elmofire.train.archive.packing; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_corpus_is_unpacked_and_read_with_numpy_alone(tmp_path):
    (tmp_path / "text.txt").write_text("One fish. Two fish.\n")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", processes=1)
    pack(corpus.folder, tmp_path / "archive", processes=1)
    program = """
import sys
class OnlyNumpy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy", "elmofire"}:
            raise ImportError(name)
sys.meta_path.insert(0, OnlyNumpy())
from elmofire.train.corpus.reader import Corpus
from elmofire.train.archive.packing import unpack
unpack("archive", "back", processes=2)
print(Corpus.open("back").train.lengths.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[3, 3]\n", done.stderr


def test_a_damaged_corpus_is_not_opened_or_not_verified(tmp_path):
    (tmp_path / "text.txt").write_text("one two three\n")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", processes=1)
    ids = tmp_path / "corpus/train-00000.ids.npy"
    data = ids.read_bytes()
    ids.write_bytes(data[:-1] + b"\1")
    with pytest.raises(DataError, match=r"damaged: train-00000\.ids\.npy"):
        corpus.verify()
    ids.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"wrong size: train-00000\.ids\.npy"):
        Corpus.open(tmp_path / "corpus")
    table = json.loads((tmp_path / "corpus/corpus.json").read_text())
    for broken in ({**table, "format": 2}, {"format": 1}, {**table, "files": {}, "splits": {}}):
        (tmp_path / "corpus/corpus.json").write_text(json.dumps(broken))
        with pytest.raises(DataError):
            Corpus.open(tmp_path / "corpus")
    with pytest.raises(DataError, match="no prepared corpus"):
        Corpus.open(tmp_path)
