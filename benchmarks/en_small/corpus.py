"""The text of en-small, from the published files to a corpus that training reads.

Run, in benchmarks: python -m en_small.corpus FOLDER CORPUS, with enwiki-1, enwiki-2, books and heldout as .txt.bz3 in FOLDER
(../shared/data/corpora). CORPUS-clean keeps the cleaned text, so that an interrupted run goes on; CORPUS-archive has it all in pieces
that can be moved.

The held-out text is not cleaned, and is for a last look: what is chosen is chosen on `dev`, half a percent of the training documents.
"""

import sys
from collections import Counter
from pathlib import Path

from records import keep

from elmofire import prepare
from elmofire.formats.files import written_aside
from elmofire.text.readers import read_lines
from elmofire.train.archive.packing import pack
from en_small.cleaning import cleaned

TRAINING = ("enwiki-1", "enwiki-2", "books")
SECTIONS = ("wiki", "books")  # of the held-out text, marked in its titles
SETTINGS = {
    "documents": "blocks",
    "titles": "^= .* =$",
    "held_out": 0.005,
    "held_out_name": "dev",
    "vocabulary": 100_000,
}


def clean(source: Path, target: Path) -> None:
    """The same documents with less in them."""
    counts: Counter[str] = Counter()
    with written_aside(target) as aside, aside.open("w", encoding="utf-8") as file:
        for line in read_lines(str(source)):
            kept = line if not line or line.startswith("= ") else cleaned(line, counts)
            counts["paragraphs"] += bool(line) and not line.startswith("= ")
            if kept is not None:
                file.write(kept + "\n")
    keep("en_small_corpus", file=source.name, **dict(sorted(counts.items())))


def divide(source: Path, targets: dict[str, Path]) -> None:
    """Each section of the held-out text to a file of its own."""
    lines: dict[str, list[str]] = {name: [] for name in targets}
    section = None
    for line in read_lines(str(source)):
        if line.startswith("= "):
            section = next(name for name in targets if line.startswith(f"= [{name}] "))
        if section is not None:
            lines[section].append(line + "\n")
    for name, target in targets.items():
        with written_aside(target) as aside:
            aside.write_text("".join(lines[name]), encoding="utf-8")


def main(folder: Path, corpus: Path) -> None:
    texts = Path(f"{corpus}-clean")
    texts.mkdir(parents=True, exist_ok=True)
    for name in TRAINING:
        if not (texts / f"{name}.txt").exists():
            clean(folder / f"{name}.txt.bz3", texts / f"{name}.txt")
    heldout = {name: texts / f"heldout-{name}.txt" for name in SECTIONS}
    if not all(path.exists() for path in heldout.values()):
        divide(folder / "heldout.txt.bz3", heldout)
    made = prepare(
        [texts / f"{name}.txt" for name in TRAINING],
        corpus,
        held_out_texts={name: [path] for name, path in heldout.items()},
        note=lambda text: print(text, file=sys.stderr),
        **SETTINGS,
    )
    archive = Path(f"{corpus}-archive")
    if not archive.exists():
        pack(corpus, archive)
    report = made.table["report"]
    splits = {"train": made.train, **made.heldout}
    keep(
        "en_small_corpus",
        splits={name: {"sentences": split.sentences, "tokens": split.tokens} for name, split in splits.items()},
        vocabulary=len(made.vocabulary),
        words=report["words"],
        archive_bytes=sum(piece.stat().st_size for piece in archive.iterdir()),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
