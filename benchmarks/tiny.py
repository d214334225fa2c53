"""Five megabytes of text to a tiny model on this machine's CPU: how long it takes, and how far below the unigram its perplexity gets.

Run: python benchmarks/tiny.py TEXT.txt, of which the first 5 MB are taken: documents between blank lines, titles as `= Title =`; one
document in twenty is held out, and words seen once or twice are unknown.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from records import keep

from elmofire.train.corpus.reader import Corpus

BYTES = 5_000_000


def seconds_of(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "elmofire", *command], check=True)
    return round(time.perf_counter() - began, 1)


def unigram_perplexity(corpus: Corpus, split: str) -> float:
    """Of the vocabulary's words and the end of the sentence, each seen once more than it was."""
    words = len(corpus.vocabulary)
    counts = np.ones(words)
    np.add.at(counts, corpus.targets(np.arange(corpus.words)), corpus.counts.astype(np.float64))
    counts[corpus.vocabulary.id("</S>")] = corpus.train.sentences + 1
    log_p = np.log(counts / counts.sum())
    held = corpus.heldout[split]
    ids, lengths = held.gather(np.arange(held.sentences))
    total = log_p[corpus.targets(ids)].sum() + len(lengths) * log_p[corpus.vocabulary.id("</S>")]
    return float(np.exp(-total / (len(ids) + len(lengths))))


def main(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Path(text).open("rb") as file:
            raw = file.read(BYTES)
        (folder / "text.txt").write_bytes(raw[: raw.rindex(b"\n") + 1])
        load = os.getloadavg()[0]
        pieces = ["--documents", "blocks", "--titles", r"^= .* =$", "--held-out", "0.05", "--min-count", "3"]
        prepared = seconds_of("prepare", str(folder / "text.txt"), *pieces, "--output", str(folder / "corpus"))
        trained = seconds_of(
            "pretrain", "tiny", "--data", str(folder / "corpus"), "--output", str(folder / "run"), "--quiet"
        )
        corpus = Corpus.open(folder / "corpus")
        evaluations = [
            record
            for line in (folder / "run/log.jsonl").read_text().splitlines()
            if (record := json.loads(line))["kind"] == "evaluation"
        ]
        best = min(evaluations, key=lambda record: record["mean"])
        unigram = unigram_perplexity(corpus, best["split"])
        keep(
            "tiny",
            load=load,
            megabytes=len(raw) / 1e6,
            tokens=corpus.train.tokens,
            vocabulary=len(corpus.vocabulary),
            seconds_to_prepare=prepared,
            seconds_to_train=trained,
            forward=best["forward"],
            backward=best["backward"],
            mean=best["mean"],
            unknown=best["unknown"],
            unigram=unigram,
            share_of_unigram=best["mean"] / unigram,
        )


if __name__ == "__main__":
    main(sys.argv[1])
