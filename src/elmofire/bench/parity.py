"""Whether vectors are right: per layer against the definition in float64. What is not is never timed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.formats.weights import Array, Weights


class Bound(NamedTuple):
    """What a precision promises of a layer, the mean over its tokens: ||found - true|| / ||true||, and the cosine."""

    relative: float
    cosine: float
    every_token: bool = False  # the bound on the relative error holds for the worst token too


BOUNDS = {
    "float32": Bound(1e-5, 0.999999, every_token=True),
    "int16": Bound(5e-3, 0.9999),
    "bfloat16": Bound(3e-2, 0.999),
    "int8": Bound(6e-2, 0.99),
}


class LayerError(TypedDict):
    """How far the vectors of a layer are from the true ones."""

    relative: float  # mean over tokens
    largest: float  # the worst token's
    cosine: float  # mean over tokens


def true_layers(weights: Weights, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
    """Layers (L + 1, tokens, width) of each sentence by the definition, one token at a time."""
    config, alphabet = weights.config, weights.alphabet
    arrays = {name: array.astype(np.float64) for name, array in weights.arrays.items() if not name.startswith("head.")}
    found = []
    for sentence in sentences:
        ids = token_ids([alphabet.start, *sentence, alphabet.end], config, weights.vocabulary, alphabet)
        layers, _ = definition.layers(config, arrays, ids)
        found.append(np.array(layers)[:, 1:-1])
    return found


def layer_errors(found: Sequence[Array], true: Sequence[Array | NDArray[np.float64]]) -> list[LayerError]:
    """Errors of each layer over all tokens of all sentences; both are (layers, tokens, width) per sentence."""
    x = np.concatenate(found, axis=1).astype(np.float64)
    y = np.concatenate(true, axis=1).astype(np.float64)
    if x.shape != y.shape:
        return [{"relative": np.inf, "largest": np.inf, "cosine": -1.0}]
    norms = np.linalg.norm(x, axis=2), np.linalg.norm(y, axis=2)
    relative = np.linalg.norm(x - y, axis=2) / norms[1]
    cosine = (x * y).sum(axis=2) / (norms[0] * norms[1])
    return [
        {"relative": float(r.mean()), "largest": float(r.max()), "cosine": float(c.mean())}
        for r, c in zip(relative, cosine, strict=True)
    ]


def refusal(errors: Mapping[str, LayerError], precision: str) -> str | None:
    """Why these results may not be timed, or None.

    >>> exact: LayerError = {"relative": 1e-6, "largest": 2e-6, "cosine": 1.0}
    >>> refusal({"layer 0": exact}, "float32") is None
    True
    >>> refusal({"layer 0": exact, "layer 1": {"relative": 1e-2, "largest": 2e-2, "cosine": 1.0}}, "float32")
    'layer 1 is off by 2.0e-02 (float32 may be by 1.0e-05)'
    """
    bound = BOUNDS[precision]
    for what, error in errors.items():
        off = error["largest" if bound.every_token else "relative"]
        if not off <= bound.relative:  # NaN is refused too
            return f"{what} is off by {off:.1e} ({precision} may be by {bound.relative:.1e})"
        if not error["cosine"] >= bound.cosine:
            return f"{what} has a cosine of {error['cosine']:.6f} ({precision} has at least {bound.cosine})"
    return None
