"""How well en-small predicts held-out text: full softmax, each direction and their geometric mean, from a zero state and with a carried one.

Run, in benchmarks: python -m en_small.evaluate MODEL CORPUS SPLIT... [--device cuda] [--precision int8] [--sentences N] [--state zero]
                    [--against FLOAT32_MODEL]; figures are kept in results/en_small_evaluation.jsonl

`wiki` and `books` are for a last look: whatever is tried is tried on `dev`. A word's probability is that of `<UNK>` where the vocabulary
lacks the word; what is read is always the word as it is spelled.
"""

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import blake2b

import numpy as np
from records import errors_in_one_line, keep

from elmofire.formats import load_weights
from elmofire.formats.native import storage_of
from elmofire.formats.weights import Weights
from elmofire.lm.language_model import LanguageModel
from elmofire.recipe import build, text_of
from elmofire.text.token_lists import Sentences
from elmofire.train.corpus.reader import Corpus
from elmofire.train.settings import Recipe

RECORDS = "en_small_evaluation"
STATES = {"zero": None, "carried": 128}  # lanes, in which a state is carried from sentence to sentence
COMPARED = 500  # sentences whose vectors are compared: 12,000 tokens of dev


def identity(weights: Weights) -> str:
    """The same for a model in every storage, and for no other: made of what its training has left in the config.

    A model that was not evaluated in training is known by its config and its numbers, so it is another in each storage.
    """
    if "held_out" in weights.training:  # its perplexity has so many digits that no other run has it
        return blake2b(json.dumps(weights.training, sort_keys=True).encode(), digest_size=6).hexdigest()
    digest = blake2b(json.dumps(asdict(weights.config), sort_keys=True).encode(), digest_size=6)
    for name in sorted(weights.arrays):
        digest.update(weights.arrays[name].tobytes())
    return digest.hexdigest()


def family(weights: Weights) -> str | None:
    """The same for all runs of one recipe on one text, whatever their seed; None if a model does not tell."""
    if "recipe" not in weights.training:
        return None
    recipe = build(Recipe, tomllib.loads(weights.training["recipe"]))
    told = [text_of(replace(recipe, train=replace(recipe.train, seed=0))), weights.training["corpus"]["digest"]]
    return blake2b(json.dumps(told).encode(), digest_size=6).hexdigest()


def sentences(corpus: Corpus, name: str, most: int | None) -> list[list[str]]:
    """Those of a split in their order: all, or so many from all over it."""
    split = corpus.heldout[name]
    numbers = np.arange(split.sentences)
    if most is not None and most < split.sentences:
        numbers = np.linspace(0, split.sentences - 1, most).round().astype(int)
    return [corpus.spellings(split.sentence(number)) for number in numbers.tolist()]


def layer_errors(lm: LanguageModel, reference: LanguageModel, text: Sentences) -> list[float]:
    """Of each layer: how far its vectors are from the reference's, as a share of their length."""
    squares = np.zeros((2, lm.config.layers + 1))
    for own, right in zip(lm.embedder.embed(text, "all"), reference.embedder.embed(text, "all"), strict=True):
        squares += np.square(own - right).sum(axis=(1, 2)), np.square(right).sum(axis=(1, 2))
    return np.sqrt(squares[0] / squares[1]).tolist()


def said(what: str, total: int) -> Callable[[int, int], None]:
    """How far it is, on stderr, every ten seconds."""
    began = last = time.monotonic()
    done = 0

    def progress(more: int, _tokens: int) -> None:
        nonlocal last, done
        done, now = done + more, time.monotonic()
        if now - last > 10:
            last = now
            print(f"{what}: {done:,} of {total:,} sentences in {now - began:.0f} s", file=sys.stderr, flush=True)

    return progress


def device_name(device: str) -> str:
    if device == "cpu":
        return "CPU"
    import torch

    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
    return f"{name}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a run")
    parser.add_argument("corpus", help="what en_small.corpus has prepared")
    parser.add_argument("splits", nargs="+", metavar="SPLIT")
    parser.add_argument("--device", default="cpu", help="cpu or a torch device")
    parser.add_argument("--precision", default="float32", help="of the arithmetic in front of the softmax")
    parser.add_argument("--sentences", type=int, metavar="N", help="only so many, from all over the split")
    parser.add_argument("--state", choices=list(STATES), help="only from this one (both)")
    parser.add_argument("--against", metavar="MODEL", help="also say how far the vectors are from this model's")
    given = parser.parse_args()
    with errors_in_one_line():
        evaluate(given)


def evaluate(given: argparse.Namespace) -> None:
    corpus, weights = Corpus.open(given.corpus), load_weights(given.model)
    lm = LanguageModel(weights, device=given.device, precision=given.precision)
    about = {
        "model": identity(weights),
        "family": family(weights),
        "storage": storage_of(weights),
        "precision": given.precision,
        "device": device_name(given.device),
    }
    for split in given.splits:
        text = sentences(corpus, split, given.sentences)
        for state in [given.state] if given.state else STATES:
            began = time.monotonic()
            found = lm.perplexity(text, lanes=STATES[state], progress=said(f"{split}, {state} state", len(text)))
            keep(
                RECORDS,
                **about,
                split=split,
                sentences=len(text),
                whole=len(text) == corpus.heldout[split].sentences,
                state=state,
                forward=found.forward,
                backward=found.backward,
                mean=found.mean,
                events=found.events,
                unknown=found.unknown,
                vocabulary=weights.config.head,
                convention=found.convention,
                seconds=round(time.monotonic() - began, 1),
            )
        if given.against:
            reference = load_weights(given.against)
            errors = layer_errors(lm, LanguageModel(reference, device=given.device), text[:: -(-len(text) // COMPARED)])
            keep(
                RECORDS,
                **about,
                split=split,
                against=storage_of(reference),
                of=identity(reference),
                layer_errors=errors,
            )


if __name__ == "__main__":
    main()
