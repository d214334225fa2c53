"""`vocab.txt`: the rules of 2018, written here once more and simply, and what cannot be written."""

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire import InputError, ModelError
from elmofire.text.vocabulary import Vocabulary, read_vocabulary, write_vocabulary


def ids_of_2018(text: str) -> dict[str, int]:
    """One word a line, stripped; `!!!MAXTERMID` takes no id; a repeated word has its last."""
    ids: dict[str, int] = {}
    number = 0
    for line in io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"):
        if line.strip() != "!!!MAXTERMID":
            ids[line.strip()] = number
            number += 1
    return ids


pieces = st.sampled_from(
    ["a", "b", "ab", "é", "猫", " ", "\t", "\n", "\n", "\r\n", "\r", "!!!MAXTERMID", "<S>", "\u3000"]
)


@pytest.mark.filterwarnings("ignore:.*repeated lines")
@settings(deadline=None)
@given(st.lists(pieces, max_size=20).map("".join))
def test_any_file_gives_the_ids_of_2018(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_bytes(text.encode())
    expected = ids_of_2018(text)
    if not any(expected):
        with pytest.raises(ModelError, match="is empty"):
            read_vocabulary(path)
        return
    vocabulary = read_vocabulary(path)
    assert {word: vocabulary.id(word) for word in expected} == expected


@pytest.mark.filterwarnings("ignore:.*repeated lines")
@settings(deadline=None)
@given(st.lists(st.text(max_size=4), max_size=6))
def test_words_are_read_as_they_were_written_or_not_written_at_all(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    try:
        write_vocabulary(path, Vocabulary(words))
    except ModelError:
        assert not path.exists()
    else:
        assert read_vocabulary(path).words == words


@pytest.mark.parametrize(
    "word",
    ["two\nlines", "two\rlines", " space", "space ", "\ufeffmark", "half \ud83d a pair", "!!!MAXTERMID"],
    ids=ascii,
)
def test_a_word_that_would_not_come_back_is_not_written(tmp_path, word):
    with pytest.raises(ModelError) as caught:
        write_vocabulary(tmp_path / "vocab.txt", Vocabulary([word, "cat"]))
    assert repr(word) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_empty_vocabulary_is_not_written(tmp_path):
    with pytest.raises(ModelError):
        write_vocabulary(tmp_path / "vocab.txt", Vocabulary([]))


def test_a_packed_file_is_read_like_a_plain_one(tmp_path):
    content = b"<S>\n</S>\n<UNK>\ncat\n"
    (tmp_path / "vocab.txt").write_bytes(content)
    (tmp_path / "vocab.txt.gz").write_bytes(gzip.compress(content))
    assert read_vocabulary(tmp_path / "vocab.txt.gz").words == read_vocabulary(tmp_path / "vocab.txt").words


def test_an_unknown_word_has_the_id_of_unk():
    assert Vocabulary(["cat", "<UNK>", "dog"]).ids(["dog", "bird", "<UNK>"]) == [2, 1, 1]


def test_an_unknown_word_without_unk_is_an_error_that_names_it():
    with pytest.raises(InputError, match="'bird' is not in the model's vocabulary"):
        Vocabulary(["cat", "dog"]).id("bird")


def test_the_unknown_word_is_found_by_either_family_name():
    assert Vocabulary(["cat", "<UNK>"]).unknown == 1
    assert Vocabulary(["<oov>", "cat"]).unknown == 0
    assert Vocabulary(["cat"]).unknown is None


def test_repeated_lines_are_counted():
    vocabulary = Vocabulary(["cat", "dog", "cat", "cat"])
    assert (len(vocabulary), vocabulary.repeated, vocabulary.id("cat")) == (4, 2, 3)
    assert "dog" in vocabulary
    assert "bird" not in vocabulary
