"""Vocabularies that do not fit: one error that names the file, and the line where there is one."""

import warnings

import pytest
from hostile.breaking import WORDS, edit_json, error_of, load_all, write_model

every_model = pytest.mark.parametrize(
    ("format", "model"), [("hdf5", "characters"), ("hdf5", "words"), ("native", "characters"), ("native", "words")]
)
TABLES = {  # what has a row for each word
    ("hdf5", "characters"): ["softmax/W"],
    ("hdf5", "words"): ["embedding", "softmax/W"],
    ("native", "characters"): ["head.weight"],
    ("native", "words"): ["encoder.words", "head.weight"],
}


@every_model
@pytest.mark.parametrize("content", ["", "\n", "\n\n\n", "  \n \t \n", "!!!MAXTERMID\n", "\ufeff"], ids=ascii)
def test_an_empty_vocabulary_is_named(tmp_path, format, model, content):
    folder = write_model(tmp_path, format, model)
    (folder / "vocab.txt").write_text(content)
    assert f"{folder / 'vocab.txt'}: the vocabulary is empty" in error_of(folder)


@every_model
@pytest.mark.parametrize("line", [1, 4, 9])
def test_a_line_that_is_not_utf8_is_named(tmp_path, format, model, line):
    folder = write_model(tmp_path, format, model)
    lines = [word.encode() for word in WORDS]
    lines[line - 1] = "café".encode("latin-1")
    (folder / "vocab.txt").write_bytes(b"\n".join(lines))
    assert f"{folder / 'vocab.txt'}:{line}: the vocabulary is not utf-8" in error_of(folder)


@every_model
@pytest.mark.parametrize("words", [WORDS[:-1], [*WORDS, "dogs"], ["<UNK>"]], ids=len)
def test_another_number_of_words_than_the_tables_have_names_both(tmp_path, format, model, words):
    folder = write_model(tmp_path, format, model)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    said = error_of(folder)
    assert f"vocab.txt has {len(words)} words" in said
    assert all(table in said for table in TABLES[format, model])


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_a_model_of_whole_words_needs_its_vocabulary(tmp_path, format):
    folder = write_model(tmp_path, format, "words")
    (folder / "vocab.txt").unlink()
    assert "vocab.txt is missing" in error_of(folder)


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_a_model_of_characters_loads_without_one(tmp_path, format):
    folder = write_model(tmp_path, format)
    (folder / "vocab.txt").unlink()
    assert load_all(folder).vocabulary is None


@every_model
def test_repeated_lines_load_with_a_warning_and_the_last_id(tmp_path, format, model):
    folder = write_model(tmp_path, format, model)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS[:6], "the", "the", "."]))
    with pytest.warns(UserWarning, match=r"vocab\.txt: 2 repeated lines") as caught:
        vocabulary = load_all(folder).vocabulary
    assert len(caught) == 1
    assert vocabulary
    assert len(vocabulary) == 9
    assert vocabulary.ids(["the", ".", "cat"]) == [7, 8, 4]


@every_model
def test_the_line_maxtermid_takes_no_id(tmp_path, format, model):
    folder = write_model(tmp_path, format, model)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS[:3], "!!!MAXTERMID", *WORDS[3:]]))
    vocabulary = load_all(folder).vocabulary
    assert vocabulary
    assert vocabulary.words == WORDS


@every_model
def test_other_line_ends_and_a_byte_order_mark_change_nothing(tmp_path, format, model):
    folder = write_model(tmp_path, format, model)
    (folder / "vocab.txt").write_bytes("\r\n".join(WORDS).encode("utf-8-sig"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vocabulary = load_all(folder).vocabulary
    assert vocabulary
    assert vocabulary.words == WORDS


def test_a_folder_in_the_place_of_the_vocabulary_is_no_vocabulary(tmp_path):
    folder = write_model(tmp_path, "native", "words")
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").mkdir()
    assert "vocab.txt is missing" in error_of(folder)


def test_a_head_that_the_config_does_not_know_leaves_the_vocabulary_alone(tmp_path):
    folder = write_model(tmp_path, "native")
    edit_json(folder / "config.json", "model.head", 0)
    said = error_of(folder)
    assert "head.weight has no place" in said
    assert "vocab.txt" not in said
