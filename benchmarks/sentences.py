"""Where sentences end: precision and recall against treebanks, beside ICU's rules (extra `text`), and megabytes a second of processor time.

Run: python benchmarks/sentences.py, with UD's treebanks in ../shared/data/tasks/ud and heldout.txt.bz3 in ../shared/data/corpora

A treebank's sentences are joined with spaces by paragraph, or ten at a time where it marks none; each end but a paragraph's last one counts.
`stopped` is the recall among ends with a stop before them and no small letter after: the others cannot be found without reading.
The rules were written looking at English-EWT's train and dev parts and at no test part.
"""

import lzma
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from icu4py.breakers import SentenceBreaker
from records import keep

from elmofire.text.readers import read_lines
from elmofire.text.sentences import VERSION, split_sentences

SHARED = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
TREEBANKS = {"en_ewt": "en", "ko_gsd": "ko", "hu_szeged": "hu", "tr_imst": "tr"}
STOPPED = re.compile(r"[.!?\u2026][\"'\u2019\u201d)\]]*$")


def paragraphs(treebank: str, part: str) -> list[list[str]]:
    text = lzma.decompress((SHARED / f"tasks/ud/{treebank}-ud-{part}.conllu.xz").read_bytes()).decode()
    blocks = re.split("^# new(?:doc|par).*$", text, flags=re.MULTILINE) if "# newpar" in text else [text]
    found = [re.findall("^# text = *(.*)$", block, flags=re.MULTILINE) for block in blocks]
    if len(found) == 1:
        found = [found[0][first : first + 10] for first in range(0, len(found[0]), 10)]
    return found


def ends(sentences: list[str]) -> list[int]:
    """How many characters, white space apart, stand before each end but the last."""
    at, found = 0, []
    for sentence in sentences:
        at += len("".join(sentence.split()))
        found.append(at)
    return found[:-1]


def score(treebank: str, part: str, split: Callable[[str, str], list[str]]) -> dict[str, float]:
    right = found = expected = stopped = stopped_right = 0
    for sentences in paragraphs(treebank, part):
        given = set(ends(split(" ".join(sentences), TREEBANKS[treebank])))
        found += len(given)
        for end, sentence, following in zip(ends(sentences), sentences, sentences[1:], strict=False):
            expected, right = expected + 1, right + (end in given)
            if STOPPED.search(sentence) and not following[:1].islower():
                stopped, stopped_right = stopped + 1, stopped_right + (end in given)
    precision, recall = right / found, right / expected
    figures = {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall),
        "stopped": stopped_right / stopped,
    }
    return {"ends": expected, **{name: round(figure, 4) for name, figure in figures.items()}}


def icu(text: str, language: str) -> list[str]:
    return [sentence for sentence in SentenceBreaker(text, language) if sentence.strip()]


def main() -> None:
    for treebank in TREEBANKS:
        for part in ("dev", "test"):
            for name, split in {"rules": split_sentences, "icu": icu}.items():
                keep(
                    "sentences",
                    treebank=treebank,
                    part=part,
                    splitter=name,
                    version=VERSION,
                    **score(treebank, part, split),
                )
    lines = list(read_lines(str(SHARED / "corpora/heldout.txt.bz3")))
    size = sum(len(line.encode()) for line in lines)
    for name, split in {"rules": split_sentences, "icu": icu}.items():
        seconds = []
        for _ in range(3):
            start = time.process_time()
            for line in lines:
                split(line, "en")
            seconds.append(time.process_time() - start)
        keep("sentences", splitter=name, version=VERSION, megabytes_per_second=round(size / min(seconds) / 1e6, 1))


if __name__ == "__main__":
    main()
