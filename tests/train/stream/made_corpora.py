"""Prepared corpora of given sentences, written file by file: words are numbers, from 3 on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.train.corpus.reader import FORMAT, Corpus

Shards = Sequence[Sequence[Sequence[int]]]


def made_corpus(
    folder: Path, train: Shards, words: int = 40, vocabulary: int = 30, heldout: Shards | None = None
) -> Corpus:
    """A corpus of shards of sentences; of its words those from `vocabulary` on are unknown to the head."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": _written(folder, "train", train)}
    if heldout is not None:
        splits["heldout"] = _written(folder, "heldout", heldout)
    spellings = ["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(3, words))]
    (folder / "words.utf8").write_text("".join(spellings), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in spellings[:vocabulary]), encoding="utf-8")
    np.save(folder / "words.ends.npy", np.cumsum([len(word) for word in spellings]))
    np.save(folder / "words.counts.npy", np.ones(words, np.uint64))
    np.save(folder / "targets.npy", np.where(np.arange(words) < vocabulary, np.arange(words), 2).astype(np.uint32))
    corpus = {
        "format": FORMAT,
        "tokenizer": {"name": "whitespace", "language": "en", "version": 1},
        "splits": splits,
        "words": words,
        "files": {file.name: {"bytes": file.stat().st_size} for file in folder.iterdir()},
    }
    (folder / "corpus.json").write_text(json.dumps(corpus), encoding="utf-8")
    return Corpus.open(folder)


def _written(folder: Path, split: str, shards: Shards) -> dict[str, Any]:
    table = []
    for number, shard in enumerate(shards):
        name = f"{split}-{number:05}"
        np.save(folder / f"{name}.ids.npy", np.array([word for sentence in shard for word in sentence], np.uint32))
        np.save(folder / f"{name}.ends.npy", np.cumsum([len(sentence) for sentence in shard]).astype(np.uint32))
        np.save(folder / f"{name}.documents.npy", np.zeros(1, np.uint32))
        table.append({"name": name, "sentences": len(shard)})
    tokens = sum(len(sentence) for shard in shards for sentence in shard)
    return {"sentences": sum(map(len, shards)), "tokens": tokens, "documents": 1, "shards": table}
