"""A corpus that is there is taken again only if it would be the same today."""

import json
import os
import shutil
import sys
import types

import pytest
from train.slow_corpus import contents

from elmofire.errors import DataError
from elmofire.text import tokenizers
from elmofire.train.corpus import settings
from elmofire.train.corpus.prepare import prepare


def edit(path, text: str, *, seconds: int = 2) -> None:
    """As if it were done later."""
    path.write_text(text)
    later = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(later, later))


def test_a_corpus_of_text_that_has_changed_is_not_taken(tmp_path):
    text, corpus, wanted = tmp_path / "text.txt", tmp_path / "corpus", {"vocabulary": 9}
    text.write_text("one two\n")
    prepare([str(text)], corpus, **wanted, processes=1)
    before = contents(corpus)
    edit(text, "one six\n")  # as many bytes
    with pytest.raises(DataError, match=r"(?s)older than .*text\.txt\nhint: remove it .* touch .*corpus\.json$"):
        prepare([str(text)], corpus, **wanted, processes=1)
    assert contents(corpus) == before
    shutil.rmtree(corpus)
    assert prepare([str(text)], corpus, **wanted, processes=1).spellings([3, 4]) == ["one", "six"]
    edit(text, "one six\n", seconds=4)  # the same again, and said to be
    os.utime(corpus / "corpus.json", ns=(text.stat().st_mtime_ns,) * 2)
    assert prepare([str(text)], corpus, **wanted, processes=1).spellings([3, 4]) == ["one", "six"]


def test_a_corpus_with_another_vocabulary_file_is_not_taken(tmp_path):
    text, words, wanted = (
        tmp_path / "text.txt",
        tmp_path / "vocab.txt",
        {"vocabulary": str(tmp_path / "vocab.txt")},
    )
    text.write_text("one two\n")
    words.write_text("<S>\n</S>\n<UNK>\none\ntwo\n")
    prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    edit(words, words.read_text())  # newer, but with the same words
    prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    words.write_text("<S>\n</S>\n<UNK>\none\n")
    os.utime(words, (1, 1))  # older, but with others
    with pytest.raises(DataError, match=r"vocab\.txt has other words now"):
        prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)


def test_a_corpus_checked_against_other_text_is_not_taken(tmp_path):
    text, wanted = tmp_path / "text.txt", {"check_against": (str(tmp_path / "eval*"),), "ngram": 2}
    text.write_text("one two\n")
    (tmp_path / "eval1").write_text("one six\n")
    prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    edit(tmp_path / "eval1", "one two\n")
    with pytest.raises(DataError, match=r"older than .*eval1"):
        prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    os.utime(tmp_path / "eval1", (1, 1))
    prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)
    (tmp_path / "eval2").write_text("one two\n")
    os.utime(tmp_path / "eval2", (1, 1))
    with pytest.raises(DataError, match="other files are to be checked against"):
        prepare([str(text)], tmp_path / "corpus", **wanted, processes=1)


def test_a_corpus_that_was_split_by_other_rules_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("One. Two.\n")
    kinds = {"split": {}, "spaces": {"pretokenized": True}}
    for name, wanted in kinds.items():
        prepare([str(tmp_path / "text.txt")], tmp_path / name, **wanted, processes=1)
    monkeypatch.setitem(tokenizers._TOKENIZERS, "penn", (2, tokenizers._TOKENIZERS["penn"][1]))
    monkeypatch.setattr(settings, "VERSION", 7)
    with pytest.raises(DataError, match=r"tokenizer penn 1, and would be by penn 2; .* by rules 1, and would be by 7"):
        prepare([str(tmp_path / "text.txt")], tmp_path / "split", **kinds["split"], processes=1)
    prepare([str(tmp_path / "text.txt")], tmp_path / "spaces", **kinds["spaces"], processes=1)


def test_a_corpus_of_a_data_set_on_disk_that_has_changed_is_not_taken(tmp_path, monkeypatch):
    rows = tmp_path / "set/rows.json"
    rows.parent.mkdir()
    rows.write_text('["one"]')
    loaded = types.SimpleNamespace(load_from_disk=lambda _: ({"text": row} for row in json.loads(rows.read_text())))
    monkeypatch.setitem(sys.modules, "datasets", loaded)
    for _ in range(2):
        prepare([f"hf:{tmp_path / 'set'}"], tmp_path / "corpus", processes=1)
    edit(rows, '["two"]')
    with pytest.raises(DataError, match=r"older than hf:.*set"):
        prepare([f"hf:{tmp_path / 'set'}"], tmp_path / "corpus", processes=1)


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_text_that_changes_while_it_is_read_is_no_corpus(tmp_path, change):
    text = tmp_path / "text.txt"
    text.write_text("one two\n")

    def note(step):
        if step == "writing shards":
            edit(text, "one six\n", seconds=-60) if change == "edited" else text.unlink()

    with pytest.raises(DataError, match="changed while it was read"):
        prepare([str(text)], tmp_path / "corpus", processes=1, note=note)
    assert [file.name for file in tmp_path.iterdir()] == (["text.txt"] if change == "edited" else [])
