"""`Embedder`: sentences in, vectors out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from elmofire.embed.cache import VectorCache
from elmofire.embed.device import make_engine
from elmofire.embed.overlap import overlapped
from elmofire.embed.pooled import PoolVectors, gathered
from elmofire.embed.selection import LayerChoice, Padded, Selection, select
from elmofire.embed.sentences import Tokens, as_list, numbered, token_lists
from elmofire.engine.batches import Ints, Places, Pool, make_pool, make_pools, token_ids
from elmofire.engine.mixing import Mix
from elmofire.engine.spill import allocate
from elmofire.engine.state import State
from elmofire.errors import InputError, ModelError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.names import DEFAULT_MODEL, is_name
from elmofire.formats.weights import Array, Source, Weights, as_folder, require_kind
from elmofire.text.token_lists import Sentences
from elmofire.text.tokenizers import Token, Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch

_ENCODED_WORDS = 8192  # at a time: their characters, vectors and convolutions, but not those of a whole language


class Embedder:
    """A biLM that embeds: every token gets a vector that depends on its sentence, and on nothing else.

    >>> elmo = Embedder.load("en-small")
    >>> vectors = elmo.embed([["Stick", "to", "the", "plan"], ["Why", "?"]])
    >>> vectors[0].shape, vectors[1].shape
    ((4, 256), (2, 256))
    """

    def __init__(
        self, weights: Weights, *, device: str = "auto", precision: str = "float32", threads: int | None = None
    ) -> None:
        require_kind(weights, "Embedder")
        self.config = weights.config
        self.truncated = 0  # tokens so far that were longer than the model reads
        self._settings = {"device": device, "precision": precision, "threads": threads}
        # Without the head, which vectors do not need: the published one is four times the size of the rest. It is read once all the
        # same (below), so that a broken file is reported.
        headless = replace(weights, config=replace(weights.config, head=0))
        self._engine = make_engine(headless, **self._settings)
        self.batch_tokens: int = self._engine.batch_tokens  # that run together
        for name in ("head.weight", "head.bias") if weights.config.head else ():
            weights.arrays[name]
        self._vocabulary = weights.vocabulary
        self._alphabet = weights.alphabet
        self._training = weights.training
        self._source = weights.source
        self.stamp = weights.source.stamp_when_loaded if weights.source else ""  # changes when the model's files do
        # What to load again: found now, as the process may go to another folder.
        self._found_at = _absolute(weights.source) if weights.source else None
        self._cache = VectorCache(limit=64 << 20)
        self._lock = Lock()
        self.tokenizer_info = weights.tokenizer
        self._tokenizer = None

    @classmethod
    def load(
        cls,
        what: Loadable = DEFAULT_MODEL,
        *,
        device: str = "auto",
        precision: str = "float32",
        threads: int | None = None,
    ) -> "Embedder":
        """Load a model: a name, a folder, or an (options, weights) pair.

        `device` is "auto" (a GPU where torch sees one, else the CPU), "cpu" or a torch device; `threads` are the CPU's.
        """
        return cls(load_weights(what), device=device, precision=precision, threads=threads)

    # -- vectors -----------------------------------------------------------------------------------------------------

    @overload
    def embed(
        self,
        sentences: Sentences,
        layers: LayerChoice = ...,
        state: None = ...,
        *,
        boundaries: bool = ...,
        padded: Literal[False] = ...,
    ) -> list[Array]: ...
    @overload
    def embed(
        self,
        sentences: Sentences,
        layers: LayerChoice = ...,
        state: None = ...,
        *,
        boundaries: bool = ...,
        padded: Literal[True],
    ) -> Padded: ...
    @overload
    def embed(
        self,
        sentences: Sentences,
        layers: LayerChoice = ...,
        *,
        state: State,
        boundaries: bool = ...,
        padded: Literal[False] = ...,
    ) -> tuple[list[Array], State]: ...
    @overload
    def embed(
        self,
        sentences: Sentences,
        layers: LayerChoice = ...,
        *,
        state: State,
        boundaries: bool = ...,
        padded: Literal[True],
    ) -> tuple[Padded, State]: ...

    def embed(
        self,
        sentences: Sentences,
        layers: LayerChoice = "average",
        state: State | None = None,
        *,
        boundaries: bool = False,
        padded: bool = False,
    ) -> Any:
        """One float32 array per sentence, in order: (tokens, width), or (layers, tokens, width) for `layers="all"`.

        `layers` is "average", "top", "all", a layer's number (0 is without context), or mix weights before the softmax. With
        `boundaries` the vectors of the start and end markers stand first and last; `padded` gives one array and its mask instead of a
        list. With a `state` the call is one batch, row r goes on from row r, and the answer is `(vectors, state)`.

        >>> elmo = Embedder.load("en-small")
        >>> elmo.embed(["A sentence as a string."], layers="all")[0].shape
        (3, 6, 256)
        """
        selection = select(layers, self.config)
        tokens = list(token_lists(sentences, self.words))
        if state is None:
            vectors = self._embed(tokens, selection, boundaries=boundaries)
            return selection.padded(vectors) if padded else vectors
        if not isinstance(state, State):
            raise InputError(f"state is {state!r:.80}, but should be a State", hint="zero_state() starts one")
        state.check(self.config)
        after = state.grown(len(tokens))
        vectors = self._embed(tokens, selection, boundaries=boundaries, state=after)
        return (selection.padded(vectors) if padded else vectors), after

    def stream(
        self,
        sentences: Sentences,
        layers: LayerChoice = "average",
        *,
        boundaries: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[tuple[list[str], Array]]:
        """Tokens and vectors of each sentence, in order, for text that does not fit in memory.

        About `4 * batch_tokens` tokens are taken at a time, from the caller's own thread, while those before them run in another.
        `progress(sentences, tokens)` is called with what each pool of them has added.

        >>> elmo = Embedder.load("en-small")
        >>> [(tokens, vectors.shape) for tokens, vectors in elmo.stream(iter(["Why?", ""]))]
        [(['Why', '?'], (2, 256)), ([], (0, 256))]
        """
        selection = select(layers, self.config)
        batches = gathered(token_lists(sentences, self.words), lambda tokens: len(tokens) + 2, 4 * self.batch_tokens)
        for batch, pools in overlapped(partial(self._pools, selection=selection, boundaries=boundaries), batches):
            results = [selection.empty()] * len(batch)
            for pool in pools:
                pool.put(results)
                if progress:
                    progress(len(pool.numbers), pool.tokens)
            yield from zip(map(as_list, batch), results, strict=True)

    def pool_by_pool(
        self,
        batches: Iterable[tuple[list[Tokens], bool]],
        selection: Selection,
        *,
        boundaries: bool,
    ) -> Iterator[tuple[list[Tokens], Iterator[PoolVectors]]]:
        """Batches (each with whether it is the last) and their vectors pool by pool, for those who need not wait for the order.

        Batches share no cache of words, so the vectors of each are the same to the bit whatever came before.
        """
        run = partial(self._pools, selection=selection, boundaries=boundaries, cache=VectorCache(limit=0))
        return overlapped(run, batches)

    def sentence_vectors(
        self, sentences: Sentences, layers: LayerChoice = "average", *, pooling: str = "mean"
    ) -> Array:
        """One vector per sentence: the mean or the maximum over its tokens, zeros for an empty sentence.

        >>> Embedder.load("en-small").sentence_vectors(["One sentence.", "Another one."], pooling="max").shape
        (2, 256)
        """
        if pooling not in ("mean", "max"):
            raise InputError(f"pooling is {pooling!r}, but should be mean or max")
        shape = select(layers, self.config).pooled_shape
        pooled = [
            getattr(vectors, pooling)(axis=-2) if tokens else np.zeros(shape, dtype=np.float32)
            for tokens, vectors in self.stream(sentences, layers)
        ]
        return np.stack(pooled) if pooled else np.zeros((0, *shape), dtype=np.float32)

    def layers(self, sentences: Sentences, *, boundaries: bool = False) -> "tuple[torch.Tensor, torch.Tensor]":
        """All layers as torch tensors, to train on: (sentences, L + 1, tokens, width) padded with zeros, and the mask."""
        from elmofire.model.torch_engine import TorchEngine, as_tensors

        device = self._engine.device if isinstance(self._engine, TorchEngine) else "cpu"
        return as_tensors(self.embed(sentences, layers="all", boundaries=boundaries, padded=True), device)

    # -- state -------------------------------------------------------------------------------------------------------

    def zero_state(self) -> State:
        """The state before any text; it grows with the batch."""
        return State.zero(self.config)

    def warm_state(self, sentences: Sentences) -> State:
        """The state after one pass over these sentences as one batch."""
        return self.embed(sentences, layers="top", state=self.zero_state())[1]

    # -- text --------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str) -> list[Token]:
        """The tokens of a sentence, each with its place in the text, as the model's own tokenizer splits it.

        >>> Embedder.load("en-small").tokenize("Don't!")
        [Token(text='Do', start=0, end=2), Token(text="n't", start=2, end=5), Token(text='!', start=5, end=6)]
        """
        return self._tokenizer_for(text)(text)

    def words(self, text: str) -> list[str]:
        """The tokens of a sentence without their places."""
        return self._tokenizer_for(text).words(text)

    def _tokenizer_for(self, text: str) -> Tokenizer:
        if not isinstance(text, str):
            raise InputError(f"{text!r:.80} is {type(text).__name__}, but should be one sentence as a string")
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.tokenizer_info)
        return self._tokenizer

    def token_lists(self, sentences: Sentences) -> Iterator[list[str]]:
        """Token lists as they are, strings tokenized; a bare string or a mixture is an error."""
        return map(as_list, token_lists(sentences, self.words))

    def clear_cache(self) -> None:
        """Forget the words seen so far: vectors stay the same, short of rounding."""
        self._cache = VectorCache(self._cache.limit)

    # -- what it is --------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The model's sizes and switches, where it came from, and what runs it."""
        config = self.config
        return {
            "model": self._source.what if self._source else None,
            "format": self._source.format if self._source else None,
            "parameters": config.parameters,
            "layers": config.layers + 1,
            "width": config.width,
            "directions": list(config.directions),
            "cells": config.cells,
            "projection": config.projection,
            "encoder": "characters" if config.encoder.filters else "words",
            "max_characters": config.encoder.max_characters if config.encoder.filters else None,
            "highways": config.encoder.highways if config.encoder.filters else None,
            "skip_connections": config.skip_connections,
            "cell_clip": config.cell_clip,
            "projection_clip": config.projection_clip,
            "head": config.head or None,
            "vocabulary": len(self._vocabulary) if self._vocabulary else None,
            "tokenizer": f"{self.tokenizer_info.name} {self.tokenizer_info.version} ({self.tokenizer_info.language})",
            "training": dict(self._training),
            "engine": self._engine.name,
            "precision": self._settings["precision"],
            "truncated": self.truncated,
        }

    def __repr__(self) -> str:
        what = self._source.what if self._source else "weights"
        return f"Embedder({what!r}, layers={self.config.layers + 1}, width={self.config.width}, engine={self._engine.name!r})"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _embed(
        self, sentences: Sequence[Tokens], selection: Selection, *, boundaries: bool, state: State | None = None
    ) -> list[Array]:
        """Vectors of token lists; a state (with a row for each) is moved on in place."""
        results = [selection.empty()] * len(sentences)
        for pool in self._pools(sentences, selection=selection, boundaries=boundaries, state=state):
            pool.put(results)
        return results

    def _pools(
        self,
        sentences: Sequence[Tokens],
        *,
        selection: Selection,
        boundaries: bool,
        state: State | None = None,
        cache: VectorCache | None = None,
    ) -> Iterator[PoolVectors]:
        """The same as they come, the longest sentences first; empty ones are left out unless boundaries or a state are wanted."""
        running = [n for n, tokens in enumerate(sentences) if len(tokens) or boundaries or state is not None]
        if not running:
            return
        words, sequences = numbered(sentences, self._alphabet.start, self._alphabet.end)
        vectors = self._encode(words, sequences, cache)
        del words
        mix = selection.mix(boundaries=boundaries)
        for pool, found in self._run(vectors, sequences, np.array(running), mix, state):
            yield PoolVectors(pool.sentences.tolist(), found, len(pool.tokens) - 2 * len(pool.lengths))
            del found

    def _encode(self, words: list[str], sequences: Sequence[Places], cache: VectorCache | None = None) -> Array:
        """Vectors without context of distinct tokens, from the cache (the embedder's own, or another) where they are known."""
        cache = self._cache if cache is None else cache
        if self.config.encoder.filters:
            self._count_truncated(words, sequences)
        vectors = allocate((len(words), self.config.encoder.width))
        for first in range(0, len(words), _ENCODED_WORDS):
            some, found = words[first : first + _ENCODED_WORDS], vectors[first : first + _ENCODED_WORDS]
            missing = cache.find(some, found)
            if missing:
                spelled = [some[place] for place in missing]
                encoded = self._engine.encode(token_ids(spelled, self.config, self._vocabulary, self._alphabet))
                found[missing] = encoded
                cache.add(spelled, encoded)
        return vectors

    def _count_truncated(self, words: list[str], sequences: Sequence[Places]) -> None:
        limit = self.config.encoder.max_characters
        truncated = [self._alphabet.is_truncated(word, limit) for word in words]
        if any(truncated):
            long = np.array(truncated)
            at_once = _ENCODED_WORDS
            starts = ((sequence, first) for sequence in sequences for first in range(0, len(sequence), at_once))
            count = sum(int(np.count_nonzero(long[sequence[first : first + at_once]])) for sequence, first in starts)
            with self._lock:
                self.truncated += count

    def _run(
        self, vectors: Array, sequences: Sequence[Places], numbers: Ints, mix: Mix, state: State | None
    ) -> Iterator[tuple[Pool, list[Array]]]:
        """Pools and the vectors of their sentences. When memory runs out, the rest goes on in pools of half the size."""
        if state is not None:
            pool = make_pool(sequences, numbers)
            yield pool, next(self._engine.by_sentence(vectors, [pool], mix, state=state))
            return
        while len(numbers):
            pools = make_pools(sequences, self.batch_tokens, numbers)
            done = 0
            try:
                for found in self._engine.by_sentence(vectors, pools, mix):
                    yield pools[done], found
                    del found  # or those of two pools would be there at once
                    done += 1
                return
            except MemoryError:
                numbers = np.concatenate([pool.sentences for pool in pools[done:]])
                if len(pools[done].sentences) == 1:
                    raise
                self.batch_tokens = max(1, min(self.batch_tokens, int(pools[done].lengths.sum())) // 2)

    def __reduce__(self):
        """Pickled as where the model is and a stamp of its files, never as its arrays."""
        if self._source is None:
            raise TypeError("an Embedder made from weights in memory cannot be pickled; save them and load the folder")
        return _reload, (self._found_at, self._settings, self.stamp, self.batch_tokens)


def _reload(what: Loadable, settings: dict[str, Any], stamp: str, batch_tokens: int) -> Embedder:
    elmo = Embedder.load(what, **settings)
    if elmo.stamp != stamp:
        raise ModelError(f"{what}: the model's files have changed since the Embedder was pickled")
    elmo.batch_tokens = batch_tokens
    return elmo


def _absolute(source: Source) -> str | tuple[str, ...]:
    what = source.what
    if isinstance(what, tuple):
        return tuple(str(as_folder(part).absolute()) for part in what)
    return what if is_name(what) or not source.files else str(as_folder(what).absolute())
