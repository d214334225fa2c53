"""The model card of en-small, from what its config says of its training and from benchmarks/results; what is not recorded is left out.

Run, in benchmarks: python -m en_small.card [FOLDER], which writes the folder's README.md anew (that of the model in the package)

results/en_small_training.jsonl is the run's log.jsonl. Figures are of records with this model's identity. The probe is of it in float32, and
by pos_probe.py --also int8=FOLDER of it as it is shipped; named entities are found with it as it is shipped.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from records import errors_in_one_line
from tables import RESULTS, ROOT, newest

from elmofire.formats import load_weights
from elmofire.formats.files import written_aside
from elmofire.formats.native import CARD
from elmofire.formats.weights import Weights
from en_small.evaluate import RECORDS, STATES, family, identity

PACKAGED = ROOT / "src/elmofire/models/en-small"
HARDWARE = "one NVIDIA H200"
TEXTS = {"wiki": "Wikipedia", "books": "books", "dev": "dev, used for selection"}
FRONT = """---
language: en
license: apache-2.0
library_name: elmofire
pipeline_tag: feature-extraction
tags: [elmo, bilm, contextual-embeddings, word-vectors, language-model]
---"""
USE = """## Use

```python
>>> from elmofire import Embedder
>>> elmo = Embedder.load("en-small")
>>> vectors = elmo.embed(["The bank raised its rates.", "They sat on the bank."], layers="all")
>>> vectors[0].shape  # layers, tokens, width
(3, 6, 256)

```

Strings are split into words as in the Penn Treebank (`penn`, English, version 1), as the training text was: `do n't`, punctuation apart.
Lists of tokens are taken as they are, and should be split likewise. Every word is read as it is spelled, byte by byte, so none is unknown
as input; the vocabulary is what the language model predicts."""
TRAINING_TEXT = """## Text

- **English Wikipedia, 2015**: 20,294 articles of an extract that was published in May 2015 (by WikiExtractor, in the history of the
  repository jason-feng/wikiVisual on GitHub); mostly its oldest articles, on central topics. Lists, tables, formulas, references and headings are gone.
- **362 English books published in 1929 or earlier**, about a third of the words, from mlschmitt/classic-books-markdown on GitHub: novels,
  stories, essays, science and history of the 19th and early 20th century, translations among them; verse, plays and notes are gone.

Articles on which SQuAD's questions are asked are left out, and so are paragraphs that share 13 successive words with the development or
test text of CoNLL-2003, UD English EWT, SST, SNLI, LingNLI, LitBank, OntoGUM, SQuAD, QAMR, PolicyQA or the all-words WSD sets, or with the
held-out text; sentences under 13 words cannot match."""
HELD_OUT = """The held-out text, `wiki` (145 whole articles) and `books` (7 whole books), is as it was found, not cleaned. About a dozen
preliminary runs, from which this recipe set out, had been compared on it. For this model nothing was chosen on it: runs
were compared on `dev`, whole documents cut from the training text."""
LAST_LOOK = "`wiki` and `books` were scored for a last look, when the model was done."
NOT_SEARCHED = ", except its rate, clip and warm-up: a first long run at the rate of 5e-3 diverged, and these were set lower without a search; it was run once, so how far another seed would land is not known"
SPELLING = """GloVe has one vector for a word in lower case: it sees no capitals and no suffixes, while the biLM reads characters. So a part of
what the biLM has over GloVe is spelling. The clean comparison, of context learned from text, is with its own layer 0 and with the
untrained biLM, which read the same characters."""
LIMITS = """## Uses and limits

Meant for features of words in context (tagging, parsing, disambiguation, retrieval of usages), for words that could stand in another's
place, and as a small biLM to try things with or to go on training. It runs on a CPU.

- English only. Other languages, code and markup are spelled out as bytes like everything else, but were hardly ever read.
- An encyclopedia of early 2015 and books of 1929 or earlier: no news, no conversation, no social media, nothing later. Names, events and
  senses of words since then are unknown to it; expect newswire and web text to be predicted less well than the figures above.
- It has its sources' biases. Wikipedia's articles are about men, Europe and North America far more than about others; books of that time
  hold views of women, races, classes, colonies and religions, and words for people, that are offensive now. Vectors and substitutes
  show them. Do not let it decide about people unchecked.
- Not for generating text: it is small, knows one sentence at a time, and has no notion of what is true.
- It has not been compared with AllenNLP's models, which are up to seven times as large and were trained on eight times as much text or more.
- Compare vectors only within this model."""
LICENSES = """## Licenses

The model is part of elmofire and has its license, Apache-2.0. The text is not included, except the words of `vocab.txt`.
Wikipedia's is by its authors, under CC BY-SA 3.0; the books are in the public domain in the USA (their status elsewhere was not examined)."""


def card(weights: Weights) -> str:
    """The whole README.md."""
    made = [FRONT, head(weights), USE, text(weights), training(weights)]
    found = [prediction(weights), worth(weights), shipped(weights)]
    return "\n\n".join([part for part in [*made, *found, LIMITS, LICENSES] if part]) + "\n"


def head(weights: Weights) -> str:
    config, encoder = weights.config, weights.config.encoder
    filters = sum(count for _, count in encoder.filters)
    return (
        "# en-small\n\nA bidirectional language model of English that gives each word a vector in its context (ELMo, Peters et al. 2018), in "
        f"the published small size: {config.layers} LSTM layers of {config.cells:,} cells a direction, projected to {config.projection}; "
        f"words encoded from bytes by {filters:,} filters and {encoder.highways} highway. {config.parameters / 1e6:.1f}M "
        f"parameters, and a softmax over {config.head:,} words behind them. Vectors have {config.width} numbers, of {config.layers + 1} layers."
    )


def text(weights: Weights) -> str:
    corpus = weights.training["corpus"]
    done: Counter[str] = Counter()
    for record in recorded("en_small_corpus", "file"):
        done.update({key: count for key, count in record.items() if key == "paragraphs" or ": " in key})
    parts = [TRAINING_TEXT]
    if done:
        dropped, mended = (
            ", ".join(f"{key.removeprefix(kind)} ({done[key]:,})" for key in sorted(done) if key.startswith(kind))
            for kind in ("dropped: ", "mended: ")
        )
        told = f"Of {done['paragraphs']:,} paragraphs, some were left out as damaged by extraction"
        parts.append(f"{told}: {dropped}. Damage mended in others: {mended}.")
    if splits := split_sizes():
        rows = [[name, f"{split['sentences']:,}", f"{split['tokens']:,}"] for name, split in splits.items()]
        parts.append(table(["split, by document", "sentences", "tokens"], rows))
    covered = corpus.get("report", {}).get("words", {}).get("coverage")
    known = "" if covered is None else f", which cover {100 * covered:.1f}% of its words"
    parts.append(f"The vocabulary is the training text's {weights.config.head:,} most frequent words{known}.")
    return "\n\n".join([*parts, HELD_OUT])


def split_sizes() -> dict[str, dict[str, int]]:
    """Sentences and tokens of each, as last prepared."""
    found = [record["splits"] for record in recorded("en_small_corpus", "vocabulary") if "splits" in record]
    return found[-1] if found else {}


def training(weights: Weights) -> str:
    facts = weights.training
    # What is read of a sentence is its words and its end.
    tokens, read = facts["corpus"]["tokens"] + split_sizes().get("train", {}).get("sentences", 0), facts["tokens_read"]
    seen = f"{read / 1e6:,.0f}M tokens in each direction, sentence ends counted, {read / tokens:.1f} times the text"
    told = f"{facts['update']:,} updates, {seen}"
    if minutes := minutes_of(recorded("en_small_training", "update", "kind"), facts):
        told += f". The run took {minutes:.1f} minutes on {HARDWARE}, evaluations included"
    searched = [run for run in recorded("en_small_search", "stage", "variant", "seed") if run["ended"]]
    if searched:
        told += f". The recipe was chosen among {len(searched)} short runs by their perplexity on `dev`{NOT_SEARCHED}"
    return f"## Training\n\n{told}. Word for word:\n\n```toml\n{facts['recipe'].strip()}\n```"


def minutes_of(log: Sequence[dict], facts: Mapping[str, Any]) -> float | None:
    """Of all sittings of the whole run; None if the log is of another run."""
    made = {"update": facts["update"], "kind": "evaluation", "mean": facts.get("held_out", {}).get("mean")}
    if not any(made.items() <= {key: record.get(key) for key in made}.items() for record in log):
        return None
    seconds = 0.0
    for record in log:
        if record["kind"] == "train":  # since the start, earlier evaluations among them
            seconds = record["clock"]["seconds"]
        elif record["kind"] == "evaluation":
            seconds += record["clock"]["seconds"]
    return seconds / 60


def prediction(weights: Weights) -> str:
    """Perplexities, and the n-gram's beside them."""
    found = evaluations(weights)
    texts = [split for split in TEXTS if any(record["split"] == split for record in found)]
    if not texts:
        return ""
    counted, zero, carried = [], [], []
    for split in texts:
        own: dict[str, list[dict]] = {state: [] for state in STATES}
        for record in found:
            own[record["state"]] += [record] if record["split"] == split else []
        carried += [figures(split, record) for record in own["carried"]]
        for one in own["zero"][:1]:
            told = [f"{one['sentences']:,}", f"{one['events']:,}", f"{100 * one['unknown']:.2f}%"]
            counted.append([TEXTS[split], *told])
        ngram = ngram_of(split)
        for record in own["zero"]:
            zero.append([*figures(split, record), f"{100 * record['mean'] / ngram['mean']:.1f}%" if ngram else ""])
        if own["zero"] and ngram:
            zero.append([*figures(split, ngram), ""])
    columns = ["text", "model", "forward", "backward", "mean"]
    vocabulary = f"vocabulary of {weights.config.head:,} words with `<UNK>` for all others"
    parts = [
        "## Perplexity",
        f"Full softmax, {vocabulary}; every sentence from a zero state, each word and the sentence's end (backward: its start) predicted; "
        "the mean is geometric. Beside it an unpruned interpolated modified Kneser-Ney 4-gram of the same training sentences, tokens and "
        "vocabulary, also sentence by sentence." + (f" {LAST_LOOK}" if {"wiki", "books"} & set(texts) else ""),
        table(["text", "sentences", "predictions a direction", "unknown words"], counted),
        table([*columns, "of the 4-gram's"], zero),
    ]
    if repeated := runs_again(weights, found):
        parts.append(f"The same recipe with another seed gives {'; '.join(repeated)}.")
    if carried:
        lanes = f"in {STATES['carried']} lanes as in 2018 (their ends dropped)"
        parts += [f"With the state carried on from sentence to sentence, {lanes}:", table(columns, carried)]
    return "\n\n".join(parts)


def runs_again(weights: Weights, own: Sequence[dict]) -> list[str]:
    """What other seeds of the recipe came to on the texts that this model was measured on."""
    means = {record["split"]: record["mean"] for record in own if is_as_trained(record)}
    others = recorded(RECORDS, "model", "storage", "precision", "split", "state", "whole")
    return [
        f"{record['mean']:.2f} on {TEXTS[record['split']]} ({100 * (record['mean'] / means[record['split']] - 1):+.1f}%)"
        for record in others
        if record.get("family") == family(weights)
        and (record["model"] != identity(weights) and is_as_trained(record) and record["split"] in means)
    ]


def is_as_trained(record: dict) -> bool:
    return (record["state"], record["storage"], record["precision"]) == ("zero", "float32", "float32")


def ngram_of(split: str) -> dict:
    """Its figures, if both directions were measured."""
    records = recorded("en_small_ngram", "split", "direction")
    found = {record["direction"]: float(record["perplexity"]) for record in records if record["split"] == split}
    return {"name": "Kneser-Ney 4-gram", **found, "mean": geometric_mean(found.values())} if len(found) == 2 else {}


def figures(split: str, record: dict) -> list[str]:
    told = [f"{record[name]:.2f}" for name in ("forward", "backward", "mean")]
    return [TEXTS[split], record.get("name") or form(record), *told]


def form(record: dict) -> str:
    """Which form of the model was measured."""
    how = {
        ("float32", "float32"): "en-small in float32",
        ("int8", "float32"): "en-small as shipped, stored as int8",
        ("int8", "int8"): 'as shipped, `precision="int8"`',
    }
    return how.get((record["storage"], record["precision"]), f"stored as {record['storage']}, {record['precision']}")


def worth(weights: Weights) -> str:
    """What probes found, those of int8 left for another place."""
    parts = []
    if compared := [record for record in probed("pos_probe", weights) if not record["first"].startswith("int8")]:
        told = "Parts of speech (UD English EWT, Penn tags, test): accuracy of a linear probe on each word's vector alone, "
        rows = [(record, record["means"], (record["low"], record["high"])) for record in compared]
        parts += [f"{told}{compared[-1]['seeds']} seeds, percent.", comparisons("accuracy", rows)]
        parts += [SPELLING] if any(record["second"] == "glove" for record in compared) else []
    if compared := probed("ner", weights, storage="int8"):
        told = "Named entities (CoNLL-2003, test): F1 of one biLSTM-CRF with these inputs, en-small as shipped, "
        sides = ("first_test_f1", "second_test_f1")
        rows = [(record, [mean(record[side]) for side in sides], record["interval"]) for record in compared]
        parts += [f"{told}{len(compared[-1]['seeds'])} seeds, percent.", comparisons("F1", rows)]
    if not parts:
        return ""
    untrained = "`untrained` are biLMs of the same size with initial weights, one a seed; layer 0 knows no context."
    drawn = "Intervals are of the paired bootstrap over test sentences, within seeds."
    return "\n\n".join(["## What its vectors are worth", *parts, f"{drawn} {untrained}"])


def shipped(weights: Weights) -> str:
    """What storing it as int8 has changed; figures that were not held against float32 do not count."""
    found = [record for record in evaluations(weights) if (record["state"], record["precision"]) == ("zero", "float32")]
    parts = []
    for split in TEXTS:
        means = {record["storage"]: record["mean"] for record in found if record["split"] == split}
        if {"float32", "int8"} <= set(means):
            parts.append(f"perplexity on {TEXTS[split]} {100 * (means['int8'] / means['float32'] - 1):+.3f}%")
    own = identity(weights)
    held = {"model": own, "storage": "int8", "precision": "float32", "of": own, "against": "float32"}
    for record in recorded(RECORDS, *held):
        if "layer_errors" in record and held.items() <= record.items():
            listed = ", ".join(f"{100 * error:.1f}%" for error in record["layer_errors"])
            parts.append(f"vectors are off by {listed} of their length (layers 0 to {weights.config.layers})")
    of_int8 = {"identity": own, "storage": "float32", "also_identity": own, "also_storage": "int8"}
    for record in probed("pos_probe", weights):
        if of_int8.items() <= record.items():
            parts.append(f"the probe's accuracy {record['difference']:+.3f} points")
    if not parts:
        return ""
    told = "Each row of each matrix is stored as int8 with a scale of its own. What that changes, against float32"
    return f"## Stored as int8\n\n{told}: {'; '.join(parts)}."


def evaluations(weights: Weights) -> list[dict]:
    """This model's perplexities on whole splits, the newest of each kind."""
    records = recorded(RECORDS, "model", "storage", "precision", "split", "state", "whole")
    own = identity(weights)
    found = [record for record in records if record["model"] == own and record.get("whole")]
    return sorted(found, key=lambda record: (record["storage"] == "int8", record["precision"] == "int8"))


def recorded(name: str, *keys: str) -> list[dict]:
    """The newest record of each case; none where there are no records."""
    return newest(name, *keys) if (RESULTS / f"{name}.jsonl").exists() else []


def probed(name: str, weights: Weights, storage: str = "float32") -> list[dict]:
    """This model's comparisons, the newest of each."""
    told = {"identity": identity(weights), "storage": storage}
    compared = recorded(name, *told, "first", "second")
    return [record for record in compared if "first" in record and told.items() <= record.items()]


def comparisons(score: str, compared: Iterable[tuple[dict, Sequence[float], Sequence[float]]]) -> str:
    """Records with the scores of both sides, and the interval of their difference."""
    rows = []
    for record, scores, (low, high) in compared:
        first, second = (re.sub(r"\bmodel\b", "en-small", record[side]) for side in ("first", "second"))
        told = f"{record['difference']:+.2f} ({low:+.2f} to {high:+.2f})"
        rows.append([first, f"{scores[0]:.2f}", second, f"{scores[1]:.2f}", told])
    return table(["", score, "against", score, "difference (95%)"], rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])


def main(folder: Path) -> None:
    made = card(load_weights(folder))
    with written_aside(folder / CARD) as aside:
        aside.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    with errors_in_one_line():
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGED)
