"""Text to vectors beside AllenNLP 2.10.1, on the same weights and sentences: a corpus call, and one sentence at a time.

Run: python benchmarks/embed.py FOLDER/bin/python [CELL...], where FOLDER was made by benchmarks/peers/allennlp.sh; cells are named
below, and without a name all but those of other instruction sets run. On a GPU: python benchmarks/embed.py cuda
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from records import keep

from elmofire.bench.contenders import Contender
from elmofire.bench.embed import Plan, bench_embed
from elmofire.bench.models import lively, sized
from elmofire.bench.text import sample_sentences
from elmofire.text.readers import read_sentences

SEED = 13
SENTENCES = 320  # in one call
SINGLES = 100
RUNS = 10
MADE_UP = "made up, as `elmofire bench` does"
THREADS = (1, 2)
PRECISIONS = ("float32", "int16", "int8")
UD = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[2] / "shared")) / "data/tasks/ud"


def text() -> tuple[str, list[list[str]], list[list[str]]]:
    """What it is, the sentences of the corpus call, and the single ones.

    UD English where it is at hand, without the shortest sentences (headings, greetings): ten runs of neighbors, spread over its kinds of
    text, which differ much in length.
    """
    files = [UD / f"en_ewt-ud-{part}.conllu.xz" for part in ("dev", "test")]
    if not all(file.is_file() for file in files):
        made_up = sample_sentences(SENTENCES + SINGLES, seed=SEED)
        return MADE_UP, made_up[:SENTENCES], made_up[SENTENCES:]
    read = (list(sentence) for file in files for sentence in read_sentences(str(file)))
    found = [sentence for sentence in read if len(sentence) >= 5]
    runs = [found[start:] for start in range(0, len(found) - len(found) // RUNS + 1, len(found) // RUNS)]
    corpus = [sentence for run in runs for sentence in run[: SENTENCES // RUNS]]
    singles = [sentence for run in runs for sentence in run[SENTENCES // RUNS :][: SINGLES // RUNS]]
    return "UD English EWT, sentences of 5 tokens or more", corpus, singles


def cells(python: str) -> Iterator[tuple[str, str, Plan]]:
    """Name, size of the model, and what is measured."""
    _, corpus, singles = text()
    ours = [Contender(precision=precision, threads=n) for n in THREADS for precision in PRECISIONS]
    numpy = [Contender(instruction_set="numpy", threads=n) for n in THREADS]
    avx2 = [Contender(instruction_set="avx2", precision=precision) for precision in PRECISIONS]
    peers = [Contender(library="allennlp", python=python, threads=n) for n in THREADS]
    for size in ("original", "small"):
        yield f"{size}-corpus", size, Plan(contenders=[*ours, *numpy, *peers], sentences=corpus)
        yield f"{size}-single", size, Plan(contenders=[*ours, *peers], singles=singles)
    for size in ("original", "small"):
        plan = Plan(contenders=[*avx2, peers[0]], sentences=corpus, singles=singles)
        yield f"{size}-avx2", size, plan


def on_gpu() -> Iterator[tuple[str, str, Plan]]:
    contenders = [Contender(device="cuda", precision=precision) for precision in ("float32", "bfloat16")]
    singles = [sentence for sentence in sample_sentences(20_000, seed=SEED) if len(sentence) == 25][:200]
    corpus = sample_sentences(4_000, seed=SEED)
    for size in ("original", "small"):
        yield f"{size}-gpu", size, Plan(contenders=contenders, sentences=corpus, singles=singles, as_text=True)


def main(python: str, *names: str) -> None:
    gpu = python == "cuda"
    told = MADE_UP if gpu else text()[0]
    found = {name: (size, plan) for name, size, plan in (on_gpu() if gpu else cells(python))}
    if unknown := set(names) - set(found):
        sys.exit(f"no cell {', '.join(unknown)}; there are {', '.join(found)}")
    for name, (size, plan) in found.items():
        if name in names or not (names or name.endswith("-avx2")):
            print(f"-- {name}", file=sys.stderr)
            load = round(os.getloadavg()[0], 1)  # of the machine before: figures are for an idle one
            records = bench_embed(lively(sized(size), seed=SEED), plan, lambda line: print(line, file=sys.stderr))
            for record in records:
                keep("embed", cell=name, model=size, seed=SEED, text=told, load=load, **record)
            if refused := [record["refused"] for record in records if record.get("refused")]:
                sys.exit(f"{name}: {'; '.join(refused)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
