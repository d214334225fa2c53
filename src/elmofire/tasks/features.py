"""What a task model reads of each token, found once and kept on the device: word vectors, characters, and layers of a frozen biLM.

All sentences of a task stand one after another as flat text; a batch names places in it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import elmofire.model  # noqa: F401  says which extra is missing, before torch does

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmofire.embed.embedder import Embedder
from elmofire.engine.batches import Ints
from elmofire.errors import DataError
from elmofire.formats.tensors import MappedTensors, write_tensors
from elmofire.tasks.layers import CHARACTER_PADDING
from elmofire.text.characters import character_ids

UNKNOWN = 0  # the row of words that have no vector and are too rare to learn one
_DEVIATION = 0.4  # of vectors that are not GloVe's: about what GloVe's own numbers have
_LAYERS, _SENTENCES, _MODEL = "layers", "sentences", "model"


class FlatText:
    """Sentences one after another."""

    def __init__(self, sentences: Sequence[Sequence[str]]) -> None:
        self.tokens = list(chain.from_iterable(sentences))
        self.lengths: Ints = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        self.starts: Ints = np.cumsum(self.lengths) - self.lengths

    def sentences(self) -> Iterator[list[str]]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.tokens[start : start + length]

    def batch(self, numbers: Ints) -> "Batch":
        """These sentences; none may be empty.

        >>> batch = FlatText([["a"], ["b", "c"], ["d"]]).batch(np.array([0, 1]))
        >>> batch.sentences.tolist(), batch.places.tolist(), batch.sizes.tolist(), batch.cells.tolist()
        ([1, 0], [1, 0, 2], [2, 1], [0, 2, 1])
        """
        numbers = numbers[np.argsort(-self.lengths[numbers], kind="stable")]
        lengths = self.lengths[numbers]
        running = np.arange(lengths[0])[:, None] < lengths  # (T, B)
        step, row = np.nonzero(running)
        return Batch(numbers, self.starts[numbers][row] + step, running.sum(axis=1), row * lengths[0] + step)


class Batch(NamedTuple):
    """Sentences that run together, laid out step by step as a `PackedSequence` is."""

    sentences: Ints  # (B,) by falling length
    places: Ints  # (rows,) in the flat text
    sizes: Ints  # (T,) how many sentences run at each step
    cells: Ints  # (rows,) in the padded batch (B, T), counted row by row

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.sentences), len(self.sizes)


class Read(NamedTuple):
    """What a model reads of n tokens; None: it does not."""

    words: Tensor | None  # (n,) rows of the word table
    characters: Tensor | None  # (n, W)
    layers: Tensor | None  # (n, L, D)


@dataclass(frozen=True)
class Features:
    """Of every token of a flat text, on a device; those that a model does not read are left out."""

    words: Tensor | None = None  # (tokens,)
    spellings: "Spellings | None" = None
    layers: Tensor | None = None  # (tokens, L, D), float16

    def at(self, places: Ints, on_device: Tensor) -> Read:
        """Of the tokens at some places, which are given on the device too."""
        return Read(
            None if self.words is None else self.words[on_device],
            None if self.spellings is None else self.spellings.at(places, on_device),
            None if self.layers is None else self.layers[on_device].float(),
        )


class Spellings:
    """The characters of each token."""

    def __init__(self, tokens: Sequence[str], device: str | torch.device) -> None:
        numbers: dict[str, int] = {}
        which = np.fromiter((numbers.setdefault(token, len(numbers)) for token in tokens), dtype=np.int64)
        ids = character_ids(list(numbers))
        self._characters = (ids != CHARACTER_PADDING).sum(axis=1)[which]  # (tokens,)
        self._which = torch.from_numpy(which).to(device)
        self._ids = torch.from_numpy(ids).to(device)

    def at(self, places: Ints, on_device: Tensor) -> Tensor:
        """Ids (n, W), no wider than the longest of them."""
        return self._ids[self._which[on_device], : int(self._characters[places].max())]


# ── word vectors ────────────────────────────────────────────────────────────────────────────────────────────────────


class WordVectors(NamedTuple):
    """A word table and the row of each token."""

    rows: Ints  # (tokens,)
    table: NDArray[np.float32]  # (rows, D)
    given: NDArray[np.bool_]  # (rows,) read; the others were drawn


def glove_vectors(path: Path, text: FlatText, training: int, *, seed: int) -> WordVectors:
    """GloVe's vectors of a text's words in lower case. The first `training` tokens are what the task is trained on.

    Words that GloVe does not have are told apart with every digit as 0: those that occur twice in training get random vectors, which
    the task is to train; all others share one, which is trained by words that occur once.
    """
    words, vectors = _read_glove(path)
    lower = [token.lower() for token in text.tokens]
    rare = Counter(re.sub("[0-9]", "0", word) for word in lower[:training] if word not in words)
    numbers: dict[str, int] = {}

    def row(word: str) -> int:
        if word not in words:
            word = re.sub("[0-9]", "0", word)
            if rare[word] < 2:
                return UNKNOWN
        return numbers.setdefault(word, len(numbers) + 1)

    rows = np.fromiter(map(row, lower), dtype=np.int64, count=len(lower))
    table = np.random.default_rng(seed).normal(0.0, _DEVIATION, (len(numbers) + 1, vectors.shape[1]))
    given = np.zeros(len(table), dtype=bool)
    for word, number in numbers.items():
        if word in words:
            table[number], given[number] = vectors[words[word]], True
    return WordVectors(rows, table.astype(np.float32), given)


def _read_glove(path: Path) -> tuple[dict[str, int], NDArray]:
    """`words` (utf-8, one a line) and `vectors` of an .npz file."""
    try:
        with np.load(path) as stored:
            words, vectors = stored["words"].tobytes().decode().split("\n"), stored["vectors"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: is not an .npz file with `words` and `vectors`: {error}") from None
    if len(words) != len(vectors):
        raise DataError(f"{path}: {len(words)} words, but {len(vectors)} vectors")
    return {word: number for number, word in enumerate(words)}, vectors


# ── layers of a biLM ────────────────────────────────────────────────────────────────────────────────────────────────


def write_layers(path: Path, embedder: Embedder, text: FlatText, *, model: str) -> None:
    """All layers of every token, (tokens, L + 1, D) in float16, for the runs of a task to share.

    `model` is what tells the embedder's model from all others.
    """
    shape = (len(text.tokens), embedder.config.layers + 1, embedder.config.width)
    vectors = (layers.swapaxes(0, 1) for _, layers in embedder.stream(text.sentences(), layers="all"))
    metadata = {_SENTENCES: _digest(text), _MODEL: model}
    write_tensors(path, {_LAYERS: ("F16", shape)}, lambda _: vectors, metadata=metadata)


def read_layers(path: Path, text: FlatText, *, model: str) -> NDArray[np.float16]:
    """What `write_layers` has written of the same model for the same sentences: a view of the mapped file."""
    tensors = MappedTensors(path)
    if tensors.metadata.get(_SENTENCES) != _digest(text):
        raise DataError(
            f"{path}: does not hold layers of these {len(text.lengths)} sentences", hint="compute the layers anew"
        )
    if (written := tensors.metadata.get(_MODEL)) != model:
        raise DataError(f"{path}: holds layers of the model {written}, not {model}", hint="compute the layers anew")
    return tensors.view(_LAYERS)


def scaled_layers(
    stored: NDArray[np.float16], numbers: Sequence[int], training: int, device: str | torch.device
) -> Tensor:
    """Some of the layers (tokens, L, D): each less its mean vector, over the root mean square that is left.

    Both are of the first `training` tokens. Layers of different models then differ in what they say, and not in how loud: an untrained
    model's vectors are mostly what they have in common.
    """
    chosen = torch.from_numpy(stored[:, list(numbers)]).to(device)
    for layer in chosen.unbind(dim=1):
        varying = layer.float()
        varying -= varying[:training].mean(dim=0)
        varying /= varying[:training].square().mean().sqrt()
        layer.copy_(varying)
    return chosen


def _digest(text: FlatText) -> str:
    """Of tokens and sentences, each with an end that UTF-8 never has."""
    digest = hashlib.sha256()
    for sentence in text.sentences():
        digest.update(b"".join(token.encode(errors="surrogatepass") + b"\xff" for token in sentence) + b"\xfe")
    return digest.hexdigest()
