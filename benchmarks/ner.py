"""What a biLM is worth to named entity recognition: CoNLL-2003, one biLSTM-CRF, five sets of inputs, five seeds.

Protocol, fixed before the test sentences were scored:
  data        eng.train to train on, eng.testa (dev) to stop by, eng.testb (test) scored once, at the end of each run, with the weights
              of the best dev epoch. Score: F1 over exact spans, as conlleval counts.
  model       word inputs, dropout 0.5, one biLSTM of 200 cells a direction, dropout 0.5, a CRF over IOBES tags. Adam 0.001, 64 sentences
              an update, gradient norm at most 5, at most 75 epochs, an end after 10 without a new best dev F1. The same for all inputs,
              none chosen for a biLM: values are AllenNLP's, but for one LSTM in the place of two and a patience of 10 in that of 25.
  inputs      glove+characters        GloVe 6B 100d in lower case, trained on, and a character CNN (16 dimensions, 128 filters of width 3)
              glove+characters+model  these and the model's layers: a learned mix with gamma, penalty 0.1
              model                   the mixed layers alone
              model layer 0           its context-free layer alone, with gamma
              untrained               the mixed layers of biLMs of the same config with initial weights, one for each seed
              Layers are frozen, each less its mean vector over the training tokens and divided by the root mean square of what is left,
              in float16; each sentence starts from the zero state.
  seeds       1 to 5: of the task model's weights, its dropout and the order of sentences, of words without a vector, and of the
              untrained biLM.
  comparison  the mean over seeds of test F1; paired bootstrap over test sentences within seeds, 10,000 resamples, 95% interval.

Run:
  python benchmarks/ner.py features MODEL NER_FOLDER FOLDER            the layers of all sentences, once, for the runs to share
  python benchmarks/ner.py run MODEL NER_FOLDER GLOVE_NPZ --configuration NAME --seed N --output FILE [--features FOLDER]
                                                                       one run, appended to FILE
                                                                       (--trial EPOCHS: a short one, dev alone)
  python benchmarks/ner.py table FILE...                               the comparisons of one model's runs that have all their seeds,
                                                                       kept in results/ner.jsonl
"""

import argparse
import base64
import json
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import torch
from en_small.evaluate import identity
from numpy.typing import NDArray
from records import commit, errors_in_one_line, keep

from elmofire.embed.embedder import Embedder
from elmofire.errors import DataError
from elmofire.formats import load_weights
from elmofire.formats.initial import initial_weights
from elmofire.formats.native import storage_of
from elmofire.formats.weights import Weights
from elmofire.tasks.features import (
    Features,
    FlatText,
    Spellings,
    glove_vectors,
    read_layers,
    scaled_layers,
    write_layers,
)
from elmofire.tasks.metrics.bootstrap import paired_bootstrap, span_f1
from elmofire.tasks.ner import NerData, train_ner
from elmofire.tasks.trainer import Epoch, TrainerSettings

# Whether it reads GloVe and characters, then whose layers, and which of them (None: all).
CONFIGURATIONS: dict[str, tuple[bool, str | None, list[int] | None]] = {
    "glove+characters": (True, None, None),
    "glove+characters+model": (True, "model", None),
    "model": (False, "model", None),
    "model layer 0": (False, "model", [0]),
    "untrained": (False, "untrained", None),
}
COMPARISONS = [
    ("glove+characters+model", "glove+characters"),
    ("model", "model layer 0"),
    ("model", "untrained"),
]
SEEDS = [1, 2, 3, 4, 5]
# What all runs of a table must have in common.
COMMON = ["identity", "storage", *(field.name for field in fields(TrainerSettings))]


def untrained(weights: Weights, seed: int) -> Weights:
    """A biLM of the same config with initial weights."""
    return initial_weights(replace(weights.config, head=0), seed=seed, vocabulary=weights.vocabulary)


def features(arguments: argparse.Namespace) -> None:
    """The layers of the model and of an untrained one for each seed into a folder."""
    text = NerData.load(arguments.ner).text
    weights = load_weights(arguments.model)
    for which, one in [("model", weights), *((f"untrained-{seed}", untrained(weights, seed)) for seed in SEEDS)]:
        began = time.perf_counter()
        write_layers(layers_file(arguments.folder, which), Embedder(one), text, model=named(one))
        print(f"{which}: {len(text.tokens):,} tokens in {time.perf_counter() - began:.1f} s", file=sys.stderr)


def layers_file(folder: Path, which: str) -> Path:
    return folder / f"ner-{which}.safetensors"


def named(weights: Weights) -> str:
    """What tells a model's layers from others: a model that is stored in another way has other ones."""
    return f"{identity(weights)} in {storage_of(weights)}"


def layers(weights: Weights, which: str, text: FlatText, folder: Path | None) -> NDArray[np.float16]:
    """From the folder of shared ones, or computed for this run."""
    if folder is not None:
        return read_layers(layers_file(folder, which), text, model=named(weights))
    with tempfile.TemporaryDirectory() as aside:
        file = layers_file(Path(aside), which)
        write_layers(file, Embedder(weights), text, model=named(weights))
        return read_layers(file, text, model=named(weights)).copy()


def run(arguments: argparse.Namespace) -> None:
    """One configuration with one seed."""
    began = time.perf_counter()
    glove, which, chosen = CONFIGURATIONS[arguments.configuration]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = TrainerSettings() if arguments.trial is None else TrainerSettings(epochs=arguments.trial)
    data, weights = NerData.load(arguments.ner), load_weights(arguments.model)
    words, spellings, vectors, mixed = None, None, None, None
    if glove:
        found = glove_vectors(arguments.glove, data.text, data.training_tokens, seed=arguments.seed)
        words, vectors = torch.from_numpy(found.rows).to(device), torch.from_numpy(found.table)
        spellings = Spellings(data.text.tokens, device)
    if which:
        drawn = which == "untrained"
        one = untrained(weights, arguments.seed) if drawn else weights
        stored = layers(one, f"{which}-{arguments.seed}" if drawn else which, data.text, arguments.features)
        mixed = scaled_layers(stored, chosen or range(stored.shape[1]), data.training_tokens, device)
    trained, epochs = train_ner(
        data,
        Features(words, spellings, mixed),
        settings,
        vectors=vectors,
        seed=arguments.seed,
        device=device,
        report=say(arguments.configuration, arguments.seed),
    )
    scores = [epoch.score for epoch in epochs]
    mix = trained.model.mix
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "configuration": arguments.configuration,
        "seed": arguments.seed,
        "model": arguments.model,
        "identity": identity(weights),
        "storage": storage_of(weights),
        "device": f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}",
        **asdict(settings),
        "dev_f1": round(max(scores), 3),
        "epochs_run": len(epochs),
        "best_epoch": int(np.argmax(scores)) + 1,
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_per_epoch": round(sum(epoch.seconds for epoch in epochs) / len(epochs), 2),
        "mix": None if mix is None else [round(share, 4) for share in mix.shares.tolist()],
        "gamma": None if mix is None else round(mix.gamma.item(), 4),
    }
    if arguments.trial is None:
        counts = trained.counts("test")
        record |= {"test_f1": round(f1(counts), 3), "test_counts": packed(counts)}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("ab", buffering=0) as file:  # in one write: others may append at the same time
        file.write(json.dumps(record).encode() + b"\n")
    print({name: value for name, value in record.items() if name != "test_counts"}, file=sys.stderr)


def say(configuration: str, seed: int) -> Callable[[Epoch], None]:
    """A line per epoch."""

    def line(epoch: Epoch) -> None:
        figures = f"loss {epoch.loss:.3f}, dev {epoch.score:.2f}, {epoch.seconds:.1f} s"
        print(f"{configuration}, seed {seed}: {figures}", file=sys.stderr, flush=True)

    return line


def f1(counts: NDArray) -> float:
    """In percent."""
    return 100 * float(span_f1(counts.sum(axis=0).astype(np.float64)))


def packed(counts: NDArray) -> str:
    """Counts of sentences (all below 256) as text."""
    return base64.b64encode(zlib.compress(counts.astype(np.uint8).tobytes(), 9)).decode()


def unpacked(text: str) -> NDArray[np.int64]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(-1, 3).astype(np.int64)


def table(arguments: argparse.Namespace) -> None:
    """Means over seeds, and the comparisons."""
    runs = finished([json.loads(line) for file in arguments.files for line in file.read_text().splitlines()])
    for configuration, of_seeds in runs.items():
        dev, test = ([record[name] for record in of_seeds] for name in ("dev_f1", "test_f1"))
        best = ", ".join(f"{record['best_epoch']} of {record['epochs_run']}" for record in of_seeds)
        print(
            f"{configuration:<24} dev {np.mean(dev):.2f} ± {np.std(dev, ddof=1):.2f}   "
            f"test {np.mean(test):.2f} ± {np.std(test, ddof=1):.2f}   best epochs {best}"
        )
    counts = {name: np.stack([unpacked(run["test_counts"]) for run in of_seeds]) for name, of_seeds in runs.items()}
    about = {
        name: sorted({record[name] for of_seeds in runs.values() for record in of_seeds})
        for name in ("model", "device")
    } | {name: next(iter(runs.values()))[0][name] for name in COMMON}
    for first, second in COMPARISONS:
        if first not in runs or second not in runs:
            continue
        found = paired_bootstrap(counts[first], counts[second], span_f1)
        keep(
            "ner",
            **about,
            seeds=SEEDS,
            first=first,
            second=second,
            first_test_f1=[record["test_f1"] for record in runs[first]],
            second_test_f1=[record["test_f1"] for record in runs[second]],
            difference=round(100 * found.difference, 3),
            interval=[round(100 * found.low, 3), round(100 * found.high, 3)],
            excludes_zero=found.excludes_zero,
        )


def finished(records: list[dict]) -> dict[str, list[dict]]:
    """Runs by seed of each configuration that has all of them, each once, of one model, trained alike, on the same test sentences."""
    if any("test_counts" not in record for record in records):
        raise DataError("a trial is among the runs")
    for name in COMMON:
        if len(values := sorted({str(record.get(name)) for record in records})) > 1:
            raise DataError(f"the runs differ in their {name}: {', '.join(values)}", hint="give those of one model")
        if any(name not in record for record in records):
            raise DataError(f"the runs do not say their {name}", hint="run them anew")
    times = Counter((record["configuration"], record["seed"]) for record in records)
    wanted = [(configuration, seed) for configuration in CONFIGURATIONS for seed in SEEDS]
    for what, wrong in {
        "are there more than once": [run for run, count in times.items() if count > 1],
        "belong to no comparison": [run for run in times if run not in wanted],
    }.items():
        if wrong:
            raise DataError(f"runs that {what}: {_listed(wrong)}")
    if len({unpacked(record["test_counts"])[:, 2].tobytes() for record in records}) > 1:
        raise DataError("the runs were scored on different test sentences")
    by_place = {(record["configuration"], record["seed"]): record for record in records}
    whole = [name for name in CONFIGURATIONS if all((name, seed) in times for seed in SEEDS)]
    lacking = f"runs that are missing: {_listed([run for run in wanted if run not in times])}"
    if not any({first, second} <= {*whole} for first, second in COMPARISONS):
        raise DataError(lacking)
    if len(whole) < len(CONFIGURATIONS):
        print(lacking, file=sys.stderr)
    return {configuration: [by_place[configuration, seed] for seed in SEEDS] for configuration in whole}


def _listed(runs: list[tuple[str, int]]) -> str:
    return ", ".join(f"{configuration} with seed {seed}" for configuration, seed in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="named entity recognition with and without a biLM")
    verbs = parser.add_subparsers(required=True)

    one = verbs.add_parser("features")
    one.add_argument("model")
    one.add_argument("ner", type=Path)
    one.add_argument("folder", type=Path)
    one.set_defaults(verb=features)

    one = verbs.add_parser("run")
    one.add_argument("model")
    one.add_argument("ner", type=Path)
    one.add_argument("glove", type=Path)
    one.add_argument("--configuration", choices=list(CONFIGURATIONS), required=True)
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--output", type=Path, required=True)
    one.add_argument("--features", type=Path, help="the folder that `features` has written")
    one.add_argument("--trial", type=int, metavar="EPOCHS", help="no more epochs than these, and no test sentences")
    one.set_defaults(verb=run)

    one = verbs.add_parser("table")
    one.add_argument("files", type=Path, nargs="+")
    one.set_defaults(verb=table)

    arguments = parser.parse_args()
    with errors_in_one_line():
        arguments.verb(arguments)


if __name__ == "__main__":
    main()
