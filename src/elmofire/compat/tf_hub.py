"""The outputs of TF-Hub's `google/elmo` under their names: `word_emb`, `lstm_outputs1`, `lstm_outputs2`, `elmo`, `default`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from elmofire.embed.embedder import Embedder
from elmofire.errors import InputError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.weights import Array, LearnedMix
from elmofire.text.token_lists import Sentences


def outputs(elmo: Embedder, sentences: Sentences, *, mix: LearnedMix | None = None) -> dict[str, Array]:
    """Every output of a batch, zeros behind each sentence's end.

    `word_emb` (B, T, P) is without context, `lstm_outputs1` and up (B, T, 2P) are the LSTM layers, `elmo` (B, T, 2P) their mix (the
    average without one), and `default` (B, 2P) its mean over each sentence's tokens.

    >>> found = outputs(Embedder.load("random-small"), [["Stick", "to", "the", "plan"], ["Why", "?"]])
    >>> {name: array.shape for name, array in found.items()}["word_emb"], found["default"].shape
    ((2, 4, 128), (2, 256))
    """
    layers, mask = elmo.embed(sentences, layers="all", padded=True)
    if mix is None:
        mixed = layers.mean(axis=1)
    else:
        powers = np.exp(np.array(mix.weights) - max(mix.weights))
        shares = (mix.gamma * powers / powers.sum()).astype(np.float32)
        mixed = np.einsum("l,bltd->btd", shares, layers)
    tokens = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return {
        "word_emb": layers[:, 0, :, : elmo.config.encoder.width],
        **{f"lstm_outputs{k}": layers[:, k] for k in range(1, elmo.config.layers + 1)},
        "elmo": mixed,
        "default": mixed.sum(axis=1) / tokens.astype(np.float32),
    }


class Module:
    """Called as the TF-Hub module was: strings that are split at spaces, or `tokens` with a `sequence_len`.

    >>> elmo = Module("random-small")
    >>> elmo(["the cat is on the mat", "dogs are in the fog"])["elmo"].shape
    (2, 6, 256)
    >>> elmo(tokens=[["why", "?"], ["no", ""]], sequence_len=[2, 1], signature="tokens")["default"].shape
    (2, 256)
    """

    def __init__(self, what: Loadable) -> None:
        weights = load_weights(what)
        self._elmo = Embedder(weights)
        self._mix = weights.mixes[0] if weights.mixes else None

    @property
    def signatures(self) -> dict[str, Any]:
        """As `hub.load(...)` has them."""
        return {name: partial(self, signature=name) for name in ("default", "tokens")}

    def __call__(
        self,
        inputs: Sequence[str] | Mapping[str, Any] | None = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        sequence_len: Sequence[int] | None = None,
        signature: str | None = None,
        as_dict: bool = True,
    ) -> dict[str, Array] | Array:
        """Strings, or `tokens` with their `sequence_len`, by name or as a mapping. `as_dict=False` gives the output `default` alone."""
        if isinstance(inputs, Mapping):
            unknown = sorted(set(inputs) - {"tokens", "sequence_len", "strings", "text"})
            if unknown:
                raise InputError(f"the inputs have {', '.join(unknown)}, but should have tokens and sequence_len")
            tokens, sequence_len = inputs.get("tokens", tokens), inputs.get("sequence_len", sequence_len)
            inputs = inputs.get("strings", inputs.get("text"))
        if (inputs is None) == (tokens is None):
            raise InputError(
                "either strings or tokens are needed",
                hint='elmo(["a b"]) or elmo(tokens=[["a", "b"]], sequence_len=[2])',
            )
        given = "default" if tokens is None else "tokens"
        if signature not in (None, given):
            raise InputError(f"the signature is {signature!r}, but what was given belongs to {given!r}")
        sentences = _split(inputs) if tokens is None else _cut(tokens, sequence_len)  # pyright: ignore[reportArgumentType]
        found = outputs(self._elmo, sentences, mix=self._mix)
        return found if as_dict else found["default"]


def _split(strings: Sequence[str]) -> list[list[str]]:
    if isinstance(strings, str):
        raise InputError("one string was given where a list of strings belongs", hint='put it in a list: ["a b"]')
    return [_text(string).split(" ") if string else [] for string in strings]


def _cut(tokens: Sequence[Sequence[str]], lengths: Sequence[int] | None) -> list[list[str]]:
    if lengths is None or len(lengths) != len(tokens):
        raise InputError("tokens need a sequence_len: the number of real tokens of each sentence")
    for number, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
        if not 0 <= length <= len(row):
            raise InputError(f"sequence_len[{number}] is {length}, but sentence {number} has {len(row)} places")
    return [[_text(token) for token in row[:length]] for row, length in zip(tokens, lengths, strict=True)]


def _text(value: str | bytes) -> str:
    """TensorFlow's strings are bytes."""
    return value.decode("utf-8", "ignore") if isinstance(value, bytes) else str(value)
