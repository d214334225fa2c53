"""simple_elmo's `ElmoModel`, with its quirks put right, or as they were on request."""
# ruff: noqa: FBT001  the signatures are simple_elmo's

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmofire.embed.embedder import Embedder
from elmofire.engine.encoder import Encoder, NumpyEncoder
from elmofire.errors import InputError, ModelError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.weights import Array, Weights
from elmofire.lm.language_model import LanguageModel

_CHOICES = ("average", "top", "all")


class ElmoModel:
    """`load` a model, then ask for vectors.

    With `quirks=True` the arrays are what simple_elmo returned: float64; in a batch, positions behind a sentence's end hold the vector
    of "no token" in layer 0, and count in averages; `layers="all"` averages mix layers and positions; and the state passes from batch to
    batch without a warm-up too. Without, they are float32, padding is zero and not counted, and `warmup=False` starts every sentence
    from zero. `warmup=True` is the same in both: the first batch is run once, then all, each going on from the one before.

    >>> model = ElmoModel()
    >>> model.load("en-small")
    'The model is now loaded.'
    >>> model.get_elmo_vectors([["Stick", "to", "the", "plan"], ["Why", "?"]]).shape
    (2, 4, 256)
    """

    def __init__(self, *, quirks: bool = False) -> None:
        self.quirks = quirks
        self.batch_size = 32
        self.full = False
        self._loaded: tuple[Weights, Embedder] | None = None

    def load(self, directory: Loadable, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> str:
        """A folder or an archive. `full` demands a model that can predict words; `limit` was about speed and is not needed."""
        if max_batch_size < 1:
            raise InputError(f"max_batch_size is {max_batch_size}, but should be at least 1")
        weights = load_weights(directory)
        if full and not (weights.config.head and weights.vocabulary):
            raise ModelError(
                f"{directory}: full=True needs a language-model head and its vocabulary, which are not there"
            )
        self._loaded = weights, Embedder(weights)
        self.__dict__.pop("_language_model", None)
        self.batch_size, self.full = max_batch_size, full
        return "The model is now loaded."

    @property
    def _weights(self) -> Weights:
        return self._model[0]

    @property
    def _elmo(self) -> Embedder:
        return self._model[1]

    @property
    def _model(self) -> tuple[Weights, Embedder]:
        if self._loaded is None:
            raise InputError("no model is loaded", hint='call load("folder") first')
        return self._loaded

    @property
    def vector_size(self) -> int:
        return self._weights.config.width

    @property
    def n_layers(self) -> int:
        """Layer 0 counted."""
        return self._weights.config.layers + 1

    @property
    def max_chars(self) -> int:
        return self._weights.config.encoder.max_characters

    def get_elmo_vectors(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: str = "average",
        session: None = None,
    ) -> NDArray[np.floating]:
        """Token lists -> (sentences, longest, 2P), or (sentences, L + 1, longest, 2P) for `layers="all"`."""
        batches = self._batches(texts, layers, session, warmup=warmup)
        longest = max(map(len, texts), default=0)
        inner = (self.n_layers,) if layers == "all" else ()
        dtype = np.float64 if self.quirks else np.float32
        padded = np.zeros((len(texts), *inner, longest, self.vector_size), dtype=dtype)
        number = 0
        for batch in batches:
            for vectors in batch:
                padded[number, ..., : vectors.shape[-2], :] = vectors
                number += 1
        return padded

    def get_elmo_vector_average(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: str = "average",
        session: None = None,
    ) -> NDArray[np.floating]:
        """One vector per sentence, divided by its length: (sentences, 2P), or (sentences, L + 1, 2P) for `layers="all"`."""
        averages: list[NDArray[np.floating]] = []
        for batch in self._batches(texts, layers, session, warmup=warmup):
            averages += [self._average(vectors) for vectors in batch]
        inner = (self.n_layers,) if layers == "all" else ()
        return np.stack(averages) if averages else np.zeros((0, *inner, self.vector_size), dtype=np.float32)

    def get_elmo_substitutes(
        self,
        data: Sequence[str],
        topn: int = 3,
        nodelimiters: bool = True,
    ) -> list[list[dict[str, Any]]]:
        """For every word of each sentence, the words that either direction expects in its place, the likeliest first.

        "logp" are log-probabilities, given the whole sentence on that side. Markers are never listed.
        """
        if isinstance(data, str):
            raise InputError("get_elmo_substitutes takes a list of strings, not one")
        if not nodelimiters:
            raise InputError("nodelimiters=False is not offered: markers are never listed")
        return [
            [self._expected(tokens, position, topn) for position in range(len(tokens))]
            for tokens in (sentence.split() for sentence in data)
        ]

    def _expected(self, tokens: list[str], position: int, topn: int) -> dict[str, Any]:
        found: dict[str, Any] = {"word": tokens[position]}
        for direction in self._weights.config.directions:
            best = self._language_model.substitutes(tokens, position, top=topn, direction=direction)
            words = [substitute.word for substitute in best]
            assert self._weights.vocabulary is not None
            found[direction] = {
                "candidates": self._weights.vocabulary.ids(words),
                "candidate_words": words,
                "logp": [round(substitute.log_probability, 4) for substitute in best],
            }
        return found

    @cached_property
    def _language_model(self) -> LanguageModel:
        return LanguageModel(self._weights)

    def _batches(
        self, texts: Sequence[Sequence[str]], layers: str, session: None, *, warmup: bool
    ) -> list[list[Array]]:
        """Vectors of each sentence, batch by batch, padded to the batch's longest with what simple_elmo had there."""
        if layers not in _CHOICES:
            raise InputError(f"layers is {layers!r}, but should be one of {', '.join(_CHOICES)}")
        if session is not None:
            raise InputError("there is no TensorFlow here, so there are no sessions", hint="leave session out")
        if isinstance(texts, str) or any(isinstance(text, str) for text in texts):
            raise InputError("texts are lists of tokens, not strings", hint="split or tokenize each sentence first")
        if not warmup and not self.quirks:
            return [self._elmo.embed(texts, layers)]
        chunks = [texts[first : first + self.batch_size] for first in range(0, len(texts), self.batch_size)]
        state = self._elmo.warm_state(chunks[0]) if warmup and chunks else self._elmo.zero_state()
        batches: list[list[Array]] = []
        for chunk in chunks:
            vectors, state = self._elmo.embed(chunk, layers, state=state)
            batches.append(self._padded(vectors, layers) if self.quirks else vectors)
        return batches

    def _padded(self, vectors: list[Array], layers: str) -> list[Array]:
        longest = max(found.shape[-2] for found in vectors)
        behind = self._no_token[layers]
        padded: list[Array] = []
        for found in vectors:
            shape = (*found.shape[:-2], longest - found.shape[-2], found.shape[-1])
            padded.append(np.concatenate([found, np.broadcast_to(behind, shape)], axis=-2))
        return padded

    @property
    def _no_token(self) -> dict[str, Array]:
        """What stood behind a sentence's end: layer 0 of "no token", zeros in the others."""
        encoder = Encoder(self._weights.config.encoder, NumpyEncoder(self._weights))
        word = encoder(np.zeros((1, self.max_chars), dtype=np.int32))[0]
        layers = np.zeros((self.n_layers, self.vector_size), dtype=np.float32)
        layers[0] = np.tile(word, len(self._weights.config.directions))
        return {"all": layers[:, None], "average": layers.mean(axis=0), "top": layers[-1]}

    def _average(self, vectors: Array) -> NDArray[np.floating]:
        if self.quirks and vectors.ndim == 3:
            # Should have been a transposition: (L + 1, T, D) is read as if it were (T, L + 1, D).
            vectors = vectors.reshape(vectors.shape[1], vectors.shape[0], -1).swapaxes(0, 1)
        mean = vectors.sum(axis=-2, dtype=np.float64) / max(vectors.shape[-2], 1)
        length = np.linalg.norm(mean)
        averaged = mean / length if length else mean
        return averaged if self.quirks else averaged.astype(np.float32)
