"""A pool's layers become what a caller gets: one array for each sentence."""

from dataclasses import dataclass

import numpy as np

from elmofire.engine.batches import Pool
from elmofire.engine.spill import allocate
from elmofire.formats.weights import Array

Layers = list[Array]  # layers 0..L of a pool, each (rows, directions * width)

_CHUNK_BYTES = 1 << 18  # of each layer, where layers are put together


@dataclass(frozen=True)
class Mix:
    """Layers 0..depth have to be computed; `shares` mix them, or all are kept. The vectors of boundaries are kept or left out."""

    depth: int
    shares: tuple[float, ...] | None = None  # one per layer 0..depth; None: all layers
    boundaries: bool = False

    @property
    def top_alone(self) -> bool:
        return self.shares is not None and self.shares[-1] == 1.0 and not any(self.shares[:-1])

    def by_sentence(self, pool: Pool, layers: Layers) -> list[Array]:
        """Of each of the pool's sentences (tokens, D), or (L + 1, tokens, D) of all layers."""
        skipped = 0 if self.boundaries else 1
        if len(pool.lengths) == 1:
            return [self._of_rows(layers, skipped, len(pool.tokens) - skipped)]
        sentences = (pool.rows_of(b)[skipped : n - skipped] for b, n in enumerate(pool.lengths.tolist()))
        if self.shares is None:
            return [np.stack([layer[rows] for layer in layers]) for rows in sentences]
        mixed = self._of_rows(layers, 0, len(pool.tokens))
        return [mixed[rows] for rows in sentences]

    def _of_rows(self, layers: Layers, first: int, last: int) -> Array:
        """Rows first..last."""
        if self.top_alone:
            return layers[-1][first:last]
        count, width = last - first, layers[-1].shape[1]
        mixed = allocate((count, width) if self.shares is not None else (len(layers), count, width), rows=count)
        # Some rows at a time, so that what is in between stays in the cache, however long the sentence.
        at_once = max(1, _CHUNK_BYTES // (4 * width))
        for start in range(0, count, at_once):
            here, there = slice(start, start + at_once), slice(first + start, min(first + start + at_once, last))
            if self.shares is None:
                for kept, layer in zip(mixed, layers, strict=True):
                    kept[here] = layer[there]
                continue
            some = mixed[here]
            np.multiply(layers[0][there], self.shares[0], out=some)
            for share, layer in zip(self.shares[1:], layers[1:], strict=True):
                some += share * layer[there]
        return mixed
