"""Held-out documents, duplicates and evaluation text are found as loops over sets find them."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.slow_corpus import documents_of
from train.test_prepare import as_blocks, random_documents

from elmofire.errors import DataError, InputError
from elmofire.train.corpus import blocks, selection
from elmofire.train.corpus.overlaps import EvaluationText, find_overlaps, ngrams, word_hashes
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.report import report_lines, short_lines_notes

WORDS = [f"w{n}" for n in range(200)]


def text_of(folder, documents, name="text.txt") -> str:
    (folder / name).write_text(as_blocks(documents), encoding="utf-8")
    return str(folder / name)


def flat(documents) -> list[tuple[str, ...]]:
    return [tuple(sentence) for document in documents for sentence in document]


# ── held out ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_held_out_documents_are_whole_and_do_not_depend_on_order(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 200)
    documents = random_documents(300, seed=1, words=WORDS)
    wanted = {"pretokenized": True, "documents": "blocks", "held_out": 0.1}
    found = []
    for name in ("one", "two"):
        corpus = prepare([text_of(tmp_path, documents, name)], tmp_path / f"{name}.corpus", **wanted, processes=1)
        train, held_out = documents_of(corpus.train, corpus), documents_of(corpus.heldout["heldout"], corpus)
        assert Counter(map(str, train + held_out)) == Counter(map(str, documents))
        assert 10 < len(held_out) < 60
        found.append({str(document) for document in held_out})
        random.Random(2).shuffle(documents)
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [1, 7, 39])
def test_as_many_documents_are_held_out_as_asked(tmp_path, count):
    text = text_of(tmp_path, random_documents(40, seed=3, words=WORDS))
    wanted = {"pretokenized": True, "documents": "blocks", "held_out": count}
    corpus = prepare([text], tmp_path / "corpus", **wanted, processes=1)
    assert (corpus.heldout["heldout"].documents, corpus.train.documents) == (count, 40 - count)


def test_what_is_held_out_has_the_name_that_is_given_beside_text_of_its_own(tmp_path):
    text, other = text_of(tmp_path, random_documents(40, seed=3)), text_of(tmp_path, [[["b"]]], "other.txt")
    wanted = {"pretokenized": True, "documents": "blocks", "held_out": 5, "held_out_name": "dev"}
    corpus = prepare([text], tmp_path / "corpus", **wanted, held_out_texts={"heldout": [other]}, processes=1)
    assert {name: split.documents for name, split in corpus.heldout.items()} == {"heldout": 1, "dev": 5}
    with pytest.raises(InputError, match="'heldout' cannot name a held-out split"):
        prepare([text], tmp_path / "no", held_out=5, held_out_texts={"heldout": [other]}, processes=1)


@pytest.mark.parametrize("held_out", [0.5, 1, 2])
def test_one_document_cannot_be_split(tmp_path, held_out):
    text = text_of(tmp_path, random_documents(40, seed=3))
    with pytest.raises(DataError, match="documents"):
        prepare([text], tmp_path / "corpus", held_out=held_out, processes=1)
    assert not (tmp_path / "corpus").exists()


def test_a_file_is_not_trained_on_and_held_out(tmp_path):
    text = text_of(tmp_path, random_documents(3, seed=4))
    with pytest.raises(InputError, match="given twice"):
        prepare([str(tmp_path / "*.txt")], tmp_path / "corpus", held_out_texts={"dev": [text]}, processes=1)


@pytest.mark.parametrize("name", ["train", "a/b", ""])
def test_a_split_has_a_name_of_its_own(tmp_path, name):
    text, other = text_of(tmp_path, [[["a"]]]), text_of(tmp_path, [[["b"]]], "other.txt")
    with pytest.raises(InputError, match="cannot name"):
        prepare([text], tmp_path / "corpus", held_out_texts={name: [other]}, processes=1)


# ── duplicates ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at_once", [4, 1 << 23])
def test_repeated_sentences_are_trained_on_once_and_never_if_held_out(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(selection, "_HASHES_AT_ONCE", at_once)
    few = ["a", "b", "c"]
    train, held_out = random_documents(80, seed=5, words=few), random_documents(4, seed=6, words=few)
    corpus = prepare(
        [text_of(tmp_path, train)],
        tmp_path / "corpus",
        pretokenized=True,
        documents="blocks",
        unique="sentences",
        held_out_texts={"dev": [text_of(tmp_path, held_out, "dev.txt")]},
        processes=1,
    )
    seen, kept = set(flat(held_out)), []
    for sentence in flat(train):
        if sentence not in seen:
            seen.add(sentence)
            kept.append(sentence)
    assert flat(documents_of(corpus.train, corpus)) == kept
    assert documents_of(corpus.heldout["dev"], corpus) == held_out
    assert corpus.table["report"]["duplicates"] == len(flat(train)) - len(kept) > 20


def test_repeated_documents_are_trained_on_once(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 60)
    documents = random_documents(10, seed=7, words=WORDS)
    order = [0, 1, 0, 2, 3, 1, 1, 4, 5, 6, 7, 8, 9, 9]
    text = text_of(tmp_path, [documents[number] for number in order])
    wanted = {"pretokenized": True, "documents": "blocks", "unique": "documents"}
    corpus = prepare([text], tmp_path / "corpus", **wanted, processes=1)
    assert documents_of(corpus.train, corpus) == documents
    assert corpus.table["report"]["duplicates"] == 4


# ── evaluation text ─────────────────────────────────────────────────────────────────────────────────────────────────


def slow_ngrams(sentence: list[str], n: int) -> list[tuple[str, ...]]:
    words = [word.lower() for word in sentence if any(letter.isalnum() for letter in word)]
    return [tuple(words[first : first + n]) for first in range(len(words) - n + 1)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "A", "b", ",", "."]), max_size=9), max_size=8),
    st.lists(st.lists(st.sampled_from(["a", "b", "B", "!", "c"]), max_size=9), max_size=8),
    st.integers(1, 5),
)
def test_shared_ngrams_are_those_of_a_slow_loop(text, evaluation, n):
    def hashed(sentences):
        words = [word for sentence in sentences for word in sentence]
        return ngrams(word_hashes(words), np.array([len(sentence) for sentence in sentences], int), n)

    known = np.unique(hashed(evaluation)[0])
    words = sorted({word for sentence in text for word in sentence}) or ["a"]
    ids = np.array([words.index(word) for sentence in text for word in sentence], int)
    lengths = np.array([len(sentence) for sentence in text], int)
    nowhere = np.zeros(len(known), np.uint32)
    first, last, _ = find_overlaps(EvaluationText(n, known, nowhere, nowhere), ids, lengths, word_hashes(words))
    wanted = {gram for sentence in evaluation for gram in slow_ngrams(sentence, n)}
    expected = [gram for sentence in text for gram in slow_ngrams(sentence, n) if gram in wanted]
    everything = [word for sentence in text for word in sentence]
    found = [everything[start : end + 1] for start, end in zip(first, last, strict=True)]
    assert [slow_ngrams(run, n) for run in found] == [[gram] for gram in expected]


@pytest.mark.parametrize("drop", [False, True])
def test_planted_evaluation_text_is_found_where_it_is(tmp_path, monkeypatch, drop):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 500)
    rng = random.Random(8)
    evaluation = [[*rng.choices(WORDS, k=20)] for _ in range(10)]
    (tmp_path / "eval.txt").write_text("".join(" ".join(sentence) + "\n" for sentence in evaluation))
    (tmp_path / "dev.jsonl").write_text(json.dumps({"tokens": ["X", *evaluation[0][:5]]}) + "\n")
    sentences = [rng.choices(WORDS, k=15) for _ in range(400)]
    sentences[17] = ["so", "-", *[word.upper() for word in evaluation[3][4:17]], "."]  # 13 of its words, in capitals
    sentences[200] = ["so", *evaluation[5][:6], ",", *evaluation[5][6:13]]  # 13 of them around a comma
    sentences[300] = ["so", *evaluation[5][:12], "."]  # only twelve
    (tmp_path / "text.txt").write_text("".join(" ".join(sentence) + "\n" for sentence in sentences))
    files = (str(tmp_path / "eval.txt"), str(tmp_path / "dev.jsonl"))
    wanted = {"pretokenized": True, "check_against": files, "drop_overlaps": drop}
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", **wanted, processes=2)
    found = [json.loads(line) for line in (tmp_path / "corpus/overlaps.jsonl").read_text().splitlines()]
    assert [(row["line"], row["file"], row["sentence"]) for row in found] == [(18, files[0], 4), (201, files[0], 6)]
    assert found[0]["words"] == " ".join(evaluation[3][4:17]).upper()
    assert found[1]["words"].split() == evaluation[5][:13]
    assert [row["sentences"] for row in corpus.table["report"]["overlaps"]] == [2, 0]
    assert [row["ngrams"] for row in corpus.table["report"]["overlaps"]] == [80, 0]
    kept = [sentence for number, sentence in enumerate(sentences) if not (drop and number in (17, 200))]
    assert flat(documents_of(corpus.train, corpus)) == [tuple(sentence) for sentence in kept]


def test_a_run_over_the_ends_of_sentences_is_found_within_a_line(tmp_path):
    lines = ["Ann saw Bob. He ran. She did not.", "Nobody ran.", "Ann saw", "Bob. He ran. Once more."]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    (tmp_path / "eval.txt").write_text("Then Ann saw Bob. He ran.\n")
    wanted = {"check_against": (str(tmp_path / "eval.txt"),), "ngram": 5, "drop_overlaps": True}
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", **wanted, processes=1)
    found = [json.loads(line) for line in (tmp_path / "corpus/overlaps.jsonl").read_text().splitlines()]
    assert [(row["line"], row["words"]) for row in found] == [
        (1, "Ann saw Bob He ran")
    ] * 2  # both sentences have part in it
    kept = [" ".join(words) for words in flat(documents_of(corpus.train, corpus))]
    assert kept == ["She did not .", "Nobody ran .", "Ann saw", "Bob .", "He ran .", "Once more ."]


def test_lines_too_short_to_be_found_are_counted_and_told(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four\n")
    (tmp_path / "short.txt").write_text("one two\n\none , - two .\none two three\n")
    (tmp_path / "long.txt").write_text("one two three\n" * 9 + "one two\n")
    wanted = {"check_against": [tmp_path / "short.txt", tmp_path / "long.txt"], "ngram": 3, "pretokenized": True}
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "corpus", **wanted, processes=1)
    found = corpus.table["report"]["overlaps"]
    assert [(row["lines"], row["short"]) for row in found] == [(3, 2), (10, 1)]
    assert short_lines_notes(corpus.table) == [
        f"2 of 3 lines of {tmp_path / 'short.txt'} have fewer than 3 words and could not be found; ngram (--ngram) takes fewer"
    ]
    assert report_lines(corpus.table)[-2:] == [
        f"overlaps    1 training sentence found with 3 words in a row of {tmp_path / 'short.txt'}, which has 1 such row",
        f"overlaps    0 training sentences found with 3 words in a row of {tmp_path / 'long.txt'}, which has 0 such rows",
    ]
