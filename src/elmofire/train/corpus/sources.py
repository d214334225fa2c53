"""Where text comes from: files, folders, patterns, data sets; line by line, with the starts of documents."""

import glob
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from elmofire.errors import DataError, InputError
from elmofire.text.readers import COMPRESSED, content_suffix, home_expanded, read_lines, read_sentences

TextPath = str | os.PathLike[str]

LONGEST_LINE = 1 << 20  # bytes; a whole book on one line is no paragraph
DOCUMENTS = ("auto", "files", "records", "blocks")
_RECORDS = (".jsonl", ".ndjson")
_IN_FOLDERS = (".txt", ".text", *_RECORDS)
_OF_A_CORPUS = ("corpus.json", "words.utf8")  # the first alone may be anybody's
_DATA_SET = re.compile(r"hf:(?P<name>[^:@#]+)(:(?P<config>[^@#]+))?(@(?P<split>[^#]+))?(#(?P<column>.+))?")


@dataclass(frozen=True)
class Source:
    """A file or a data set; `split` names the held-out split that it is for, "" is for training."""

    path: str
    split: str = ""

    def files(self) -> list[Path]:
        """What is read on this machine: the file itself, or those of a data set that is a folder; none of one of the hub."""
        described = _DATA_SET.fullmatch(self.path)
        if described is None:
            return [Path(self.path)]
        return sorted(file for file in Path(described["name"]).rglob("*") if file.is_file())

    def stamp(self) -> list[object]:
        """What tells it apart from another, or from itself when it has changed."""
        place = self.path if self.path.startswith("hf:") else str(Path(self.path).absolute())
        stats = [file.stat() for file in self.files() if file.exists()]
        return [place, self.split, *([stat.st_size, stat.st_mtime_ns] for stat in stats)]


class Line(NamedTuple):
    """A line: raw, or as tokens where its file holds tokens."""

    number: int  # of the line, record or row in its source, from 1
    content: str | list[str]
    starts_document: bool


def listed_paths(paths: Iterable[TextPath], name: str) -> list[str]:
    """Each as text, `~` in full; one path alone, whose letters would each be taken for a path, is an error.

    >>> listed_paths("news.txt", "texts")
    Traceback (most recent call last):
    elmofire.errors.InputError: texts is one path where a list of them belongs
    hint: put it in a list: ['news.txt']
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise InputError(
            f"{name} is one path where a list of them belongs", hint=f"put it in a list: [{os.fspath(paths)!r}]"
        )
    return [home_expanded(path) for path in paths]


def find_sources(
    texts: Iterable[TextPath], split: str = "", *, name: str = "texts", note: Callable[[str], None] | None = None
) -> list[Source]:
    """The files that are meant: a folder's text files by name, a pattern's matches by name, `hf:...` as it is.

    A prepared corpus inside a folder is left out: its vocab.txt is no text. `name` is what an error calls the texts; `note` is told of
    a folder's files that are left out.

    >>> find_sources(["nowhere/*.txt"])
    Traceback (most recent call last):
    elmofire.errors.InputError: nowhere/*.txt: no file has such a name
    """
    found: list[Source] = []
    for text in listed_paths(texts, name):
        path = Path(text)
        if text == "-":
            raise InputError(
                "-: standard input cannot be read, since a run that is killed goes on in the middle of its text",
                hint="write it to a file first; a compressed one will do",
            )
        if text.startswith("hf:"):
            _data_set(text)
            paths = [text]
        elif path.is_dir():
            if _is_corpus(path):
                raise InputError(
                    f"{text}: is a corpus that was prepared already",
                    hint=f"pretrain with data={text!r} (--data {text}) trains on it; to prepare it in another way, give its text again",
                )
            paths, others = _in_folder(path)
            if not paths:
                raise InputError(f"{text}: no text in this folder{_listed(others, ', but ')}", hint=_how(path, others))
            if others and note:
                note(f"{text}: {_listed(others)} left out: {_how(path, others)}")
        elif path.exists() or not glob.has_magic(text):
            paths = [text]
        else:
            matches = glob.iglob(text, recursive=True)  # noqa: PTH207 (a Path's own takes no absolute pattern)
            paths = [name for name in sorted(matches) if Path(name).is_file()]
            if not paths:
                raise InputError(f"{text}: no file has such a name")
        found += [Source(name, split) for name in paths]
    for source in found:
        # What stands for bytes that are no utf-8, which no file of ours can hold.
        if any("\ud800" <= letter <= "\udfff" for letter in source.path):
            raise InputError(f"{source.path!a}: the name is not utf-8", hint="rename the file")
        if not source.path.startswith("hf:") and not Path(source.path).is_file():
            reason = "cannot be read twice" if Path(source.path).exists() else "no such file"
            raise InputError(f"{source.path}: {reason}")
    return found


def _in_folder(folder: Path) -> tuple[list[str], list[Path]]:
    """The text files of a folder by name, and its other files; hidden ones, corpora and those in the making are neither."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(folder))]
    corpora = {file.parent for file in files if file.name == _OF_A_CORPUS[0] and _is_corpus(file.parent)}
    corpora |= {file.parent for file in files if file.name == "manifest.json" and file.parent.suffix == ".parts"}
    files = [file for file in files if corpora.isdisjoint(file.parents)]
    return [str(file) for file in files if _is_text(file)], [file for file in files if not _is_text(file)]


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _how(folder: Path, others: Sequence[Path]) -> str:
    """Which files of a folder are taken, and how the others can be."""
    taken = "it takes .txt and .jsonl files, compressed too, and compressed ones without another ending"
    folders = {file.parent for file in others}
    pattern = f"{glob.escape(str(folders.pop()))}/*" if len(folders) == 1 else f"{glob.escape(str(folder))}/**"
    return f"{taken}; '{pattern}' takes all files" if others else taken


def _listed(files: Sequence[Path], before: str = "") -> str:
    if not files:
        return ""
    names = ", ".join(os.fsencode(file.name).decode(errors="backslashreplace") for file in files[:3]) + (
        ", ..." if len(files) > 3 else ""
    )
    return f"{before}{len(files):,} file{'' if len(files) == 1 else 's'} ({names})"


def _is_corpus(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _OF_A_CORPUS)


def refuse_unreadable(
    sources: Sequence[Source], splits: Sequence[str], *, documents: str, titles: re.Pattern[str] | None
) -> None:
    """Before the long part: a kind of file that cannot be read, as where an extra is missing, and splits without a sentence.

    The first file of each kind is opened, and what was given for a split until it has a line: a line is a sentence, and never left out.
    """

    def has_line(source: Source) -> bool:
        return any(True for _ in read_source(source, documents=documents, titles=titles))

    files = [source for source in reversed(sources) if not source.path.startswith("hf:")]
    for source in {(content_suffix(file.path), Path(file.path).suffix.lower()): file for file in files}.values():
        has_line(source)
    for name in splits:
        given = [source for source in sources if source.split == name]
        if given and not any(map(has_line, given)):
            raise no_sentence(given, f", the text of the split {name}")


def no_sentence(sources: Sequence[Source], what: str = "") -> DataError:
    listed = ", ".join(source.path for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
    return DataError(f"no sentence in {listed}{what}", hint="it takes lines of text in utf-8")


def _is_text(file: Path) -> bool:
    suffix = content_suffix(file.name)
    # Of a compressed file what looks like a number is no ending: v1.2.gz, news.en-00001-of-00100.gz.
    no_ending = not suffix or re.fullmatch(r"\.\d+|.*\d\d.*", suffix)
    return suffix in _IN_FOLDERS or bool(no_ending and file.suffix.lower() in COMPRESSED)


def read_source(source: Source, *, documents: str = "auto", titles: re.Pattern[str] | None = None) -> Iterator[Line]:
    """The lines of a source, empty ones left out, lines in which `titles` is found too.

    A document is a whole file, a record (of JSON lines, or a line of text), or a block between blank lines; `auto` takes records of
    JSON lines and data sets, and otherwise files. A record's text may have many lines.
    """
    by_record = source.path.startswith("hf:") or content_suffix(source.path) in _RECORDS
    if documents == "auto":
        documents = "records" if by_record else "files"
    if by_record and documents == "blocks":
        raise InputError(
            f"{source.path}: JSON lines and data sets have no blank lines",
            hint='documents="records" (--documents records)',
        )
    records = _rows(source.path) if source.path.startswith("hf:") else _records(source.path)
    new = True
    for number, record in records:
        new = new or documents == "records"
        for line in [record] if isinstance(record, list) else record.split("\n"):
            if isinstance(line, str):
                line = line.strip()
                if not line:
                    new = new or documents == "blocks"
                    continue
                if titles and titles.search(line):
                    continue
            if checked := _checked(line, source.path, number):
                yield Line(number, checked, new)
                new = False


def _records(path: str) -> Iterator[tuple[int, str | list[str]]]:
    if content_suffix(path) in _RECORDS:
        return enumerate(read_sentences(path, format="jsonl"), 1)
    if content_suffix(path) in (".conllu", ".conll"):
        raise InputError(
            f"{path}: CoNLL-U is no running text",
            hint="write its words one sentence a line, for pretokenized=True (--pretokenized)",
        )
    return enumerate(read_lines(path, longest=LONGEST_LINE), 1)


def _checked(line: str | list[str], path: str, number: int) -> str | list[str]:
    size = len(line) if isinstance(line, str) else sum(map(len, line))
    if size > LONGEST_LINE:
        what = f"{path}:{number}: a line of {size:,} characters, more than {LONGEST_LINE:,}"
        raise InputError(what, hint="a line holds a sentence or a paragraph")
    if isinstance(line, str):
        if "\0" in line:
            raise InputError(f"{path}:{number}: holds the byte 0, so it is no text", hint="is this a binary file?")
        # Half a surrogate pair, which JSON can hold, has no bytes, so no model could see it.
        return line if line.isascii() else line.encode("utf-8", "ignore").decode()
    for token in line:
        if not token or "\0" in token or token.split() != [token]:
            raise InputError(f"{path}:{number}: the token {token!r:.40} is empty or holds white space")
    return [token.encode("utf-8", "ignore").decode() or "\ufffd" for token in line]


class BrokenOff(InputError):
    """What comes over a network could not be read on: what was prepared before stays, since the same command may do better."""


# ── data sets of the Hugging Face hub ───────────────────────────────────────────────────────────────────────────────


def _data_set(text: str) -> tuple[dict[str, str | None], Any]:
    described = _DATA_SET.fullmatch(text)
    if described is None:
        raise InputError(
            f"{text}: is no data set", hint="hf:NAME, hf:NAME:CONFIG, hf:NAME@SPLIT or hf:NAME#COLUMN, or all"
        )
    try:
        return described.groupdict(), importlib.import_module("datasets")
    except ImportError:
        raise InputError(f"{text}: needs the package datasets", hint="pip install datasets") from None


def _rows(text: str) -> Iterator[tuple[int, str | list[str]]]:
    named, datasets = _data_set(text)
    name, column = cast(str, named["name"]), named["column"] or "text"
    try:
        if Path(name).is_dir() and list(Path(name).glob("*.json")):
            rows = datasets.load_from_disk(name)
            rows = rows[named["split"] or "train"] if isinstance(rows, dict) else rows
        else:
            rows = datasets.load_dataset(name, named["config"], split=named["split"] or "train", streaming=True)
    except Exception as error:
        raise BrokenOff(f"{text}: cannot be loaded: {error}") from None
    for number, row in enumerate(_read_on(text, rows), 1):
        value = row.get(column)
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(token, str) for token in value)
        ):
            raise InputError(
                f"{text}:{number}: no text in column {column!r}",
                hint=f"the columns are {', '.join(row)}: hf:NAME#COLUMN",
            )
        yield number, value


def _read_on(text: str, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a data set, which may come over a network: what fails there is no error of this machine's disk."""
    read, found = 0, iter(rows)
    while True:
        try:
            row = next(found)
        except StopIteration:
            return
        except Exception as error:
            told = f"{text}: cannot be read on after {read:,} rows: {error}"
            raise BrokenOff(told, hint="run the same command again to resume") from None
        yield row
        read += 1
