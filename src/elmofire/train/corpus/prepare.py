"""From text to a prepared corpus, beside the output, so that a killed run goes on where it was.

`CORPUS.parts/` holds a manifest that says which run it belongs to, the blocks, and the corpus so far, which is renamed at the end.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmofire.errors import DataError, ElmofireError, InputError
from elmofire.formats.files import held_alone
from elmofire.formats.weights import as_folder
from elmofire.recipe import shown
from elmofire.text.tokenizers import Tokenizer
from elmofire.text.vocabulary import Vocabulary
from elmofire.train.corpus.job import Job
from elmofire.train.corpus.reader import CORPUS_FILE, Corpus
from elmofire.train.corpus.settings import corpus_settings
from elmofire.train.corpus.sources import BrokenOff, Source, TextPath, find_sources
from elmofire.train.corpus.words import SPECIALS, given_vocabulary
from elmofire.train.processes import Processes


def prepare(
    texts: Iterable[TextPath],
    output: str | os.PathLike[str],
    *,
    held_out_texts: Mapping[str, Iterable[TextPath]] | None = None,
    tokenizer: Tokenizer | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    **settings: Any,
) -> Corpus:
    """Make a corpus of files, folders, patterns or `hf:` data sets; the same call again goes on with an interrupted one.

    `held_out_texts` are text of their own for splits by name. `tokenizer` is another one than that of the settings' language. The result
    does not depend on the number of `processes`. `progress` is called with the sentences and tokens that each block adds, `note` with
    what is being done. The settings, and what each is if it is not given:

    language="en"        a code; it decides how words are split
    pretokenized=False   words are separated by spaces already, and each line is a sentence
    sentences="split"    find them in each line, a paragraph or less; "lines": each is one already
    documents="auto"     what a document is: "files", "records" of JSON lines, "blocks" between blank lines; auto: records of .jsonl, else files
    titles=""            leave out lines in which this regular expression is found
    held_out=0           documents to hold out: a share below 1, or as an int how many; held_out_name="heldout" names their split
    vocabulary=100_000   how many words to predict, <S>, </S> and <UNK> among them; or a vocab.txt
    min_count=1          leave rarer words out of the vocabulary
    unique=""            "sentences" or "documents": train on each of them once only
    check_against=()     files of evaluation text to look for in the training text; ngram=13 words in a row tell
    drop_overlaps=False  leave out the training sentences that are found so

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> size = (folder / "text.txt").write_text("One fish, two fish. Red fish.\\n\\nThe cat can't swim.\\n")
    >>> corpus = prepare([folder / "text.txt"], folder / "corpus", documents="blocks", processes=1)
    >>> corpus.train.documents, corpus.train.sentences, corpus.train.tokens
    (2, 3, 15)
    """
    wanted = corpus_settings(settings)
    if processes is not None and processes < 1:
        raise InputError(f"processes is {processes}, but should be at least 1")
    output = as_folder(output)
    held_out_texts = held_out_texts or {}
    sources: list[Source] = []
    for name, files in held_out_texts.items():
        sources += find_sources(files, name, name=f"held_out_texts[{name!r}]", note=_warn)
    sources += find_sources(texts, note=_warn)
    names = [*held_out_texts, *([wanted.held_out_name] if wanted.held_out else [])]
    _check_names(names, sources)
    vocabulary = _listed_words(wanted.vocabulary) if isinstance(wanted.vocabulary, str) else None
    options = {**asdict(wanted), "check_against": list(wanted.check_against)}
    listed = [{"path": source.path, "split": source.split or "train", "bytes": _size(source)} for source in sources]
    described = {"options": options, "sources": listed}
    tokenizer = tokenizer or wanted.tokenizer()
    job = Job(output, wanted, tokenizer, sources, names, vocabulary, note or (lambda text: None))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        return _made_before(job, described)
    taken = DataError(f"{output}: another process is writing it", hint="wait until it is done, or choose another name")
    try:
        with held_alone(Path(f"{output}.lock"), taken):
            try:
                with Processes(processes) as running:
                    job.run(running, described, progress or (lambda sentences, tokens: None))
            except ElmofireError as error:
                # What is mended now is another run; but a network comes back by itself, and what was read till then stays.
                if not (isinstance(error, BrokenOff) and any(job.blocks_folder.glob("*"))):
                    shutil.rmtree(f"{output}.parts", ignore_errors=True)
                raise
    except OSError as error:
        problem = (
            str(error) if isinstance(error, ChildProcessError) else f"cannot be written: {error.strerror or error}"
        )
        done = f"what is done so far is in {output}.parts; run the same command again to resume"
        raise DataError(f"{output}: {problem}", hint=done if Path(f"{output}.parts").exists() else "") from None
    return Corpus.open(output)


def _listed_words(path: str) -> Vocabulary:
    file = Path(path)
    if not file.exists():
        raise InputError(f"vocabulary is {path!r}, but should be a number or a file that exists")
    vocabulary = given_vocabulary(file)
    # Words of some languages have spaces, but a number behind most of them is their count.
    counted = [number for number, word in enumerate(vocabulary.words, 1) if re.fullmatch(r"\S+[ \t]+\d+", word)]
    if 2 * len(counted) > len(vocabulary) - len(SPECIALS):
        what = f"{path}:{counted[0]}: {vocabulary.words[counted[0] - 1][:40]!r} holds white space, so no word of the text can be this one"
        raise InputError(what, hint="one word a line, without its count")
    return vocabulary


def _check_names(names: list[str], sources: list[Source]) -> None:
    for name in names:
        if not re.fullmatch(r"[\w.]+", name) or name == "train" or names.count(name) > 1:
            raise InputError(f"{name!r} cannot name a held-out split", hint="letters and digits, and each name once")
    if not any(not source.split for source in sources):
        raise InputError("no training text was given")
    seen: dict[str, Source] = {}
    for source in sources:
        key = source.path if source.path.startswith("hf:") else str(Path(source.path).resolve())
        if key in seen:
            both = (
                f" (in {seen[key].split or 'train'} and {source.split or 'train'})"
                if seen[key].split != source.split
                else ""
            )
            raise InputError(f"{source.path}: given twice{both}")
        seen[key] = source


def _warn(told: str) -> None:
    warnings.warn(told, stacklevel=4)


def _size(source: Source) -> int | None:
    return None if source.path.startswith("hf:") else Path(source.path).stat().st_size


def _made_before(job: Job, described: dict[str, Any]) -> Corpus:
    """The corpus that is there, if it is the one that was asked for and would be the same today."""
    output = job.output
    try:
        corpus = Corpus.open(output)
    except DataError:
        raise DataError(f"{output}: exists and is no prepared corpus", hint="choose another name") from None
    if asked := _asked_otherwise(corpus.table, described):
        raise DataError(
            f"{output}: a corpus made in another way is there: {', '.join(asked[:6])}",
            hint="choose another name, or remove it first",
        )
    if changes := list(_changes(corpus, job)):
        raise DataError(
            f"{output}: a corpus is there, but {'; '.join(changes)}",
            hint="remove it to have it made again, or choose another name",
        )
    table, paths = output / CORPUS_FILE, [*job.evaluation, *(source.path for source in job.sources)]
    newer = [path for path in paths if _is_newer(Source(path), table)]
    if newer:
        raise DataError(
            f"{output}: a corpus is there, but older than {', '.join(newer[:3])}{', ...' if len(newer) > 3 else ''}",
            hint=f"remove it to have it made again, or choose another name; if the text is still the same: touch {table}",
        )
    shutil.rmtree(f"{output}.parts", ignore_errors=True)  # of a run that was killed right after the rename
    Path(f"{output}.lock").unlink(missing_ok=True)
    return corpus


def _asked_otherwise(table: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """What is asked for now and was not then."""
    was, now = _asked(table), _asked(described)
    changes = [
        f"{name} is {now.get(name, 'not given')} now and was {was.get(name, 'not given')}"
        for name in dict.fromkeys([*now, *was])
        if now.get(name) != was.get(name)
    ]
    if not changes and table.get("sources") != described["sources"]:
        return ["the texts stand in another order"]
    return changes


def _asked(table: dict[str, Any]) -> dict[str, str]:
    """Options by name, and texts by path."""
    options = {name: shown(value) for name, value in table.get("options", {}).items()}
    sizes = {file["path"]: "" if file["bytes"] is None else f" of {file['bytes']:,} bytes" for file in table["sources"]}
    return options | {file["path"]: f"{file['split']} text{sizes[file['path']]}" for file in table["sources"]}


def _changes(corpus: Corpus, job: Job) -> Iterator[str]:
    """What the corpus would be made with today, where that is not what it was made with."""
    was, now = corpus.tokenizer, job.tokenizer.info
    if was != now:
        yield f"its words were split by the tokenizer {was.name} {was.version}, and would be by {now.name} {now.version}"
    rules = corpus.table["sentences"]["rules"]
    if rules != job.settings.sentence_rules:
        yield f"its sentences were split by rules {rules}, and would be by {job.settings.sentence_rules}"
    if job.vocabulary is not None and corpus.vocabulary.words != job.vocabulary.words:
        yield f"{job.settings.vocabulary} has other words now"
    if [checked["file"] for checked in corpus.table["report"]["overlaps"]] != job.evaluation:
        yield "other files are to be checked against now"


def _is_newer(source: Source, table: Path) -> bool:
    return any(file.stat().st_mtime_ns > table.stat().st_mtime_ns for file in source.files())
