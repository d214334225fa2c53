"""ELMoForManyLangs' `Embedder`: `sents2elmo` on any model that loads."""

from collections.abc import Sequence

from elmofire.embed import embedder
from elmofire.errors import InputError
from elmofire.formats import Loadable
from elmofire.formats.weights import Array

_LAYERS: dict[int, str | int] = {-1: "average", -2: "all"}


class Embedder:
    """A model folder; `sents2elmo` gives one float32 array per sentence.

    Every sentence starts from zero. With `stateful=True` the state is carried over batches and calls, as it was: sentences are
    sorted by length, longest first, and row r of a batch goes on from row r of the one before. Batches run in that order; there they
    were shuffled by Python's `random`.

    >>> Embedder("random-small").sents2elmo([["Stick", "to", "the", "plan"], ["Why", "?"]])[0].shape
    (4, 256)
    """

    def __init__(self, model_dir: Loadable, batch_size: int = 64, *, stateful: bool = False) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}, but should be at least 1")
        self.model_dir = model_dir
        self.batch_size = batch_size
        self.stateful = stateful
        self._elmo = embedder.Embedder.load(model_dir)
        self._state = self._elmo.zero_state()

    def reset_states(self) -> None:
        """The next batch starts from zero, with `stateful` too."""
        self._state = self._elmo.zero_state()

    def sents2elmo(self, sents: Sequence[Sequence[str]], output_layer: int = -1) -> list[Array]:
        """Arrays (tokens, 2P) in the order of the sentences: -1 is the mean of the layers, 0 and up that layer; -2 all of them,
        (L + 1, tokens, 2P)."""
        if isinstance(sents, str) or any(isinstance(sentence, str) for sentence in sents):
            raise InputError(
                "sents2elmo takes lists of tokens, not strings", hint="split or tokenize each sentence first"
            )
        top = self._elmo.config.layers
        if output_layer not in range(-2, top + 1):
            raise InputError(
                f"output_layer is {output_layer}, but should be -2 (all), -1 (mean) or a layer, 0 to {top}"
            )
        layers = _LAYERS.get(output_layer, output_layer)
        if not self.stateful:
            return self._elmo.embed(sents, layers)
        order = sorted(range(len(sents)), key=lambda number: -len(sents[number]))
        vectors: dict[int, Array] = {}
        for first in range(0, len(order), self.batch_size):
            rows = order[first : first + self.batch_size]
            found, self._state = self._elmo.embed([sents[number] for number in rows], layers, state=self._state)
            vectors.update(zip(rows, found, strict=True))
        return [vectors[number] for number in range(len(sents))]
