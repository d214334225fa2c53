import bz2
import gzip
import io
import json
import lzma
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmofire.errors import InputError
from elmofire.text import readers
from elmofire.text.readers import read_sentences

TWO_ROWS = "1\tthe\t_\t_\t_\t_\t_\t_\t_\t_\n2\tplan\t_\t_\t_\t_\t_\t_\t_\t_\n"


@pytest.fixture
def write(tmp_path):
    """Writes a file and gives its path."""

    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def message(path: str, **options) -> str:
    """What the error says, the folder left out."""
    with pytest.raises(InputError) as caught:
        list(read_sentences(path, **options))
    return str(caught.value).replace(str(Path(path).parent) + os.sep, "")


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_is_a_sentence_and_a_blank_line_an_empty_one(write):
    path = write("a.txt", "  Stick to\tit \n\n \nlast without an end")
    assert list(read_sentences(path)) == ["Stick to\tit", "", "", "last without an end"]
    assert list(read_sentences(path, pretokenized=True)) == [
        ["Stick", "to", "it"],
        [],
        [],
        ["last", "without", "an", "end"],
    ]


def test_a_path_may_be_an_object_and_begin_at_home(write, monkeypatch):
    path = Path(write("a.jsonl.gz", gzip.compress(b'"one"\n["two"]\n')))
    monkeypatch.setenv("HOME", str(path.parent))
    for same in (path, "~/a.jsonl.gz", Path("~/a.jsonl.gz")):
        assert list(read_sentences(same)) == ["one", ["two"]]


def test_an_empty_file_has_no_sentences(write):
    assert list(read_sentences(write("a.txt", ""))) == []
    assert list(read_sentences(write("b.txt", b"\xef\xbb\xbf"))) == []


def test_lines_end_with_newline_only(write):
    path = write("a.txt", "one\r\ntwo\u2028still\x0btwo\x0cand\x85two\rtwo\n")
    assert list(read_sentences(path)) == ["one", "two\u2028still\x0btwo\x0cand\x85two\rtwo"]


def test_a_byte_order_mark_is_dropped_at_the_start_only(write):
    assert list(read_sentences(write("a.txt", "\ufeffone\n\ufefftwo\n"))) == ["one", "\ufefftwo"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="\ufeff"), min_size=1))
    )
)
def test_what_was_joined_by_spaces_and_newlines_comes_back(tmp_path, sentences):
    path = tmp_path / "a.txt"
    path.write_bytes("".join(" ".join(sentence) + "\n" for sentence in sentences).encode())
    assert list(read_sentences(str(path), pretokenized=True)) == sentences


def test_standard_input_is_a_dash(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert list(read_sentences("-")) == ["one", "two"]


def test_standard_input_is_named_in_errors_and_takes_a_format(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'["a"]\n7\n')))
    assert message("-", format="jsonl").startswith("<stdin>:2: expected a string")


def test_sentences_are_read_as_they_are_asked_for(write):
    sentences = read_sentences(write("a.txt", b"good\n\xff\n"))
    assert next(sentences) == "good"
    with pytest.raises(InputError, match=r"a\.txt:2"):
        next(sentences)


# ── CoNLL-U ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_conllu_gives_the_forms_without_ranges_and_empty_nodes(write):
    rows = [
        "# text = I don't",
        "1\tI",
        "2-3\tdon't",
        "2\tdo",
        "3\tn't",
        "3.1\tgo",
        "4\ta b",
        "",
        "",
        "# newpar",
        "1\tYes",
    ]
    path = write("a.conllu", "\r\n".join(rows))
    assert list(read_sentences(path)) == [["I", "do", "n't", "a b"], ["Yes"]]
    assert list(read_sentences(path, pretokenized=True)) == [["I", "do", "n't", "a b"], ["Yes"]]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            "3 with spaces",
            "a.conllu:3: not a CoNLL-U row: no word in a second column\nhint: columns are separated by tabs",
        ),
        ("3\t", "a.conllu:3: not a CoNLL-U row: no word"),
        ("three\tword", "a.conllu:3: the id 'three' is not a number"),
        ("3-\tword", "a.conllu:3: the id '3-' is not"),
        ("\u0663\tword", "a.conllu:3: the id '\u0663' is not"),
        (
            "1\tNext",
            "a.conllu:3: word 1 follows word 2\nhint: ids count up from 1; sentences are separated by a blank line",
        ),
        ("9" * 5000 + "\tword", "a.conllu:3: word 99999999999999999999 follows word 2"),
    ],
    ids=["spaces", "no form", "letters", "half a range", "other digits", "no blank line", "endless id"],
)
def test_a_row_that_is_no_row_is_an_error(write, row, says):
    assert message(write("a.conllu", TWO_ROWS + row + "\n")).startswith(says)


# ── JSON lines ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jsonl_takes_strings_lists_and_objects(write):
    values = [
        "A plan. ",
        ["A", "plan", "."],
        {"tokens": ["x y"], "id": 3},
        {"text": "raw"},
        {"text": "raw", "tokens": []},
        "",
    ]
    path = write("a.jsonl", "".join(json.dumps(value) + "\n" for value in values))
    assert list(read_sentences(path)) == ["A plan. ", ["A", "plan", "."], ["x y"], "raw", [], ""]
    assert list(read_sentences(path, pretokenized=True)) == [
        ["A", "plan."],
        ["A", "plan", "."],
        ["x y"],
        ["raw"],
        [],
        [],
    ]


EXPECTED = "expected a string, a list of tokens, or an object with `tokens` (a list) or `text` (a string)"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("7", EXPECTED),
        ("null", EXPECTED),
        ('{"sentence": "a"}', EXPECTED),
        ('{"tokens": "a b"}', EXPECTED),
        ('{"tokens": null, "text": "a"}', EXPECTED),
        ('{"text": ["a"]}', EXPECTED),
        ('["a", 7]', "token 2 is of type int, not a string"),
        ('{"tokens": [null]}', "token 1 is of type NoneType, not a string"),
        ("{'a'}", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("", 'a blank line\nhint: an empty sentence is written ""'),
        (" \t", "a blank line"),
        ("9" * 10_000, "not JSON: Exceeds the limit"),
        ("[" * 200_000, "not JSON: "),
    ],
    ids=lambda value: value[:20],
)
def test_a_line_that_is_no_sentence_is_an_error(write, line, says):
    assert message(write("a.jsonl", f'"fine"\n{line}\n"fine"\n')).startswith(f"a.jsonl:2: {says}")


# ── which format ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".BZ2", bz2.compress)]
)
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.conllu", TWO_ROWS, [["the", "plan"]]),
        ("v1.2.CONLL", TWO_ROWS, [["the", "plan"]]),
        ("a.jsonl", '["the", "plan"]\n', [["the", "plan"]]),
        ("a.ndjson", '"the plan"', ["the plan"]),
        ("a.conllu.txt", "the plan", ["the plan"]),
        ("noname", "the plan", ["the plan"]),
    ],
)
def test_the_suffix_gives_format_and_compression(write, suffix, compress, name, content, expected):
    assert list(read_sentences(write(name + suffix, compress(content.encode())))) == expected


def test_a_format_given_wins_over_the_suffix(write):
    assert list(read_sentences(write("a.txt", TWO_ROWS), format="conllu")) == [["the", "plan"]]
    assert list(read_sentences(write("b.jsonl.gz", gzip.compress(b'["a"]')), format="text")) == ['["a"]']


def test_an_unknown_format_is_an_error_at_once():
    with pytest.raises(InputError, match="unknown format 'csv': the known ones are auto, text, conllu, jsonl"):
        read_sentences("a.txt", format="csv")


# ── broken files ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bytes_that_are_not_utf8_are_an_error_with_a_way_out(write):
    said = message(write("a.txt", b"fine\ncaf\xe9\n"))
    assert said.startswith(
        "a.txt:2: not UTF-8: byte 0xe9 at byte 4 of the line\nhint: convert it first, for example: iconv -f latin1"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(b"text"), "give the file its suffix .gz"),
        (lzma.compress(b"text"), "give the file its suffix .xz"),
        (bz2.compress(b"text"), "give the file its suffix .bz2"),
        ("text".encode("utf-16"), "iconv -f utf-16"),
        ("text\nmore".encode("utf-16-le"), "iconv -f utf-16le -t utf-8"),
        ("text\nmore".encode("utf-16-be"), "iconv -f utf-16be -t utf-8"),
        ("привет, мир и все\n".encode("utf-16-le"), "iconv -f utf-16le -t utf-8"),
        ("«eins» und zwei\n".encode("utf-16-le"), "iconv -f utf-16le -t utf-8"),
        (b"\xe9t\xe9", "iconv -f latin1"),
    ],
    ids=["gz", "xz", "bz2", "utf-16", "utf-16le", "utf-16be", "russian", "quotes", "latin1"],
)
def test_a_file_that_starts_with_no_text_is_told_what_it_looks_like(write, content, says):
    assert says in message(write("a.txt", content))


@pytest.mark.parametrize("format", ["text", "conllu", "jsonl"])
@pytest.mark.parametrize(
    "content",
    [
        b"%PDF-1.4\n1 0 obj\n",
        b"PK\x03\x04\x14\x00\x06\x00\x08\x00",
        b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01",
        b"\x89PNG\r\n\x1a\n",
        b"{\\rtf1\\ansi one}\n",
        random.Random(1).randbytes(5_000),
        gzip.compress(b"text")[2:],
    ],
    ids=["pdf", "zip", "elf", "png", "rtf", "random", "deflated"],
)
def test_a_file_that_is_no_text_is_never_to_be_converted(write, content, format):
    said = message(write("a.txt", content), format=format)
    assert said.startswith("a.txt: is no text (a PDF? a Word or zip file?)\nhint: save what it says as plain text")


def test_the_byte_0_is_refused_wherever_it_stands(write):
    assert message(write("a.txt", b"fine\none\0two\n")).startswith(
        "a.txt:2: holds the byte 0, which text has not\nhint: is"
    )
    assert message(write("a.conllu", b"1\tfine\n2\to\0ne\n")).startswith("a.conllu:2: holds the byte 0")
    assert message(write("a.txt", b"a good line \0 but for one byte\n")).startswith("a.txt:1: holds the byte 0")
    assert message(write("a.txt", b"fine\n\x02 caf\xe9\n")).startswith("a.txt:2: not UTF-8: byte 0xe9 at byte 6")
    russian = "ё\nи снова два и три\n".encode("utf-16-le")  # the first line has no zero
    assert "iconv -f utf-16le" in message(write("b.txt", russian))


def test_tokens_of_json_hold_what_they_like(write):
    assert list(read_sentences(write("a.jsonl", '["a\\u0000b"]\n'))) == [["a\0b"]]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_a_compressed_file_cut_short_or_broken_is_an_error(write, suffix, compress):
    whole = compress(random.Random(1).randbytes(5_000).hex().encode())
    for content in (whole[:-20], b"no such thing", whole[:50] + bytes(2_000) + whole[2_050:]):
        assert message(write("a.txt" + suffix, content)).startswith(
            f"a.txt{suffix}: broken or truncated {suffix} file: "
        )


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".xz", ".bz2"])
def test_what_cannot_be_opened_is_an_error(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    assert message(str(tmp_path / f"none{suffix}")) == f"none{suffix}: cannot be opened: No such file or directory"
    assert message(str(tmp_path / f"folder{suffix}")) == f"folder{suffix}: cannot be opened: Is a directory"
    assert message(str(tmp_path / f"nul\0{suffix}")).startswith(f"nul\0{suffix}: cannot be opened: embedded null")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_that_may_not_be_read_is_an_error(write):
    path = write("a.txt", "secret")
    Path(path).chmod(0)
    assert message(path) == "a.txt: cannot be opened: Permission denied"


def test_a_file_that_fails_while_it_is_read_is_an_error(monkeypatch):
    class Failing(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError("Input/output error")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Failing()))
    assert message("-") == "<stdin>: cannot be read: Input/output error"


def test_the_longest_line_is_64_mebibytes(write, monkeypatch):
    assert readers.LONGEST_LINE == 64 * 1024 * 1024
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    assert [len(line) for line in read_sentences(write("a.txt", "x" * 99 + "\n" + "y" * 100))] == [99, 100]
    assert message(write("a.txt", "x\n" + "y" * 101)).startswith(
        "a.txt:2: the line is longer than 100 bytes\nhint: is this a text file?"
    )


def test_a_decompression_bomb_does_not_fill_the_memory(write, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 1_000_000)
    path = write("bomb.gz", gzip.compress(bytes(50_000_000), 1))
    tracemalloc.start()
    try:
        assert message(path).startswith("bomb.gz:1: the line is longer than 1,000,000 bytes")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
