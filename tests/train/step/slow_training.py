"""A language model and its training by their definitions: float64, one word of one row after the other, gradients by autograd.

It shares no code with the package: parameters are tensors by the names that files have, words are rows of character ids.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elmofire.formats.config import BilmConfig

Cell = tuple[int, int] | None  # the word that is read and the one to predict; None: nothing
State = list[tuple[Tensor, Tensor]]  # h and c of each layer
Negatives = tuple[Sequence[int], int]  # the words drawn, and the draws it took


class SlowModel:
    """`spellings[word]` are the character ids of a word of the corpus."""

    def __init__(self, config: BilmConfig, arrays: dict, spellings) -> None:
        self.config = config
        self.arrays = {
            name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in arrays.items()
        }
        self._spellings = spellings
        self._vectors: dict[int, Tensor] = {}

    def zero_state(self) -> State:
        shapes = [(self.config.projection, self.config.cells)] * self.config.layers
        return [(torch.zeros(p, dtype=torch.float64), torch.zeros(c, dtype=torch.float64)) for p, c in shapes]

    def losses(
        self, direction: str, row: Sequence[Cell], state: State, negatives: Negatives | None, *, reset: bool
    ) -> tuple[Tensor, State]:
        """The sum over a row's cells, and the state after it."""
        total = torch.zeros((), dtype=torch.float64)
        for cell in row:
            if cell is None:
                break  # what comes after a sentence's end is never read again
            word, target = cell
            if reset and word == (0 if direction == "forward" else 1):
                state = self.zero_state()
            top, state = self.step(direction, self.vector(word), state)
            total = total + self.loss(top, target, negatives)
        return total, state

    def vector(self, word: int) -> Tensor:
        if word not in self._vectors:
            self._vectors[word] = self._encoded(self._spellings[word])
        return self._vectors[word]

    def _encoded(self, ids) -> Tensor:
        encoder, arrays = self.config.encoder, self.arrays
        characters = torch.stack([self._character(int(number)) for number in ids])
        pooled = []
        for k, (width, _) in enumerate(encoder.filters):
            weight, bias = arrays[f"encoder.convolutions.{k}.weight"], arrays[f"encoder.convolutions.{k}.bias"]
            windows = [characters[first : first + width] for first in range(len(ids) - width + 1)]
            pooled.append(torch.stack([(weight * window.T).sum(dim=(1, 2)) + bias for window in windows]).amax(dim=0))
        z = torch.cat(pooled)
        z = z.clamp_min(0) if encoder.activation == "relu" else z.tanh()
        for k in range(encoder.highways):
            transformed = self._affine(f"encoder.highways.{k}.transform", z).clamp_min(0)
            if encoder.highway == "mlp":
                z = transformed
                continue
            gate = self._affine(f"encoder.highways.{k}.gate", z).sigmoid()
            carry = 1 - gate
            if encoder.highway == "learned":
                carry = self._affine(f"encoder.highways.{k}.carry", z).sigmoid()
            z = gate * transformed + carry * z
        return self._affine("encoder.projection", z) if encoder.projection else z

    def _character(self, number: int) -> Tensor:
        """Ids count from 1."""
        if self.config.encoder.one_hot:
            return torch.eye(self.config.encoder.characters, dtype=torch.float64)[number - 1]
        return self.arrays["encoder.characters"][number - 1]

    def step(self, direction: str, x: Tensor, state: State) -> tuple[Tensor, State]:
        """A word's vector through all layers."""
        config, after = self.config, []
        for k, (h, c) in enumerate(state):
            name = f"{direction}.{k}"
            gates = (
                self.arrays[f"{name}.weight_ih"] @ x
                + self.arrays[f"{name}.weight_hh"] @ h
                + self.arrays[f"{name}.bias"]
            )
            i, f, g, o = gates.split(config.cells)
            c = (f + config.forget_bias).sigmoid() * c + i.sigmoid() * g.tanh()
            if config.cell_clip is not None:
                c = c.clamp(-config.cell_clip, config.cell_clip)
            h = o.sigmoid() * c.tanh()
            if config.lstm_projection:
                h = self.arrays[f"{name}.weight_hr"] @ h
                if config.projection_clip is not None:
                    h = h.clamp(-config.projection_clip, config.projection_clip)
            after.append((h, c))
            x = h + x if config.skip_connections and k > 0 else h
        return x, after

    def loss(self, top: Tensor, target: int, negatives: Negatives | None) -> Tensor:
        """-log p of the right word among all, or among those drawn: of each, logit - ln(how often it was expected)."""
        weight, bias = self.arrays["head.weight"], self.arrays["head.bias"]
        if negatives is None:
            scores = weight @ top + bias
            return scores.logsumexp(dim=0) - scores[target]
        drawn, tries = negatives

        def score(word: int) -> Tensor:
            chance = (math.log(word + 2) - math.log(word + 1)) / math.log(len(bias) + 1)
            return weight[word] @ top + bias[word] - math.log(1 - (1 - chance) ** tries)

        right = score(target)
        others = [score(word) for word in drawn if word != target]
        return torch.stack([right, *others]).logsumexp(dim=0) - right

    def _affine(self, name: str, x: Tensor) -> Tensor:
        return self.arrays[f"{name}.weight"] @ x + self.arrays[f"{name}.bias"]

    def descend(self, objective: Tensor, rate: float) -> None:
        """Plain gradient descent; vectors of words are made anew after it."""
        objective.backward()
        with torch.no_grad():
            for array in self.arrays.values():
                if array.grad is not None:
                    array -= rate * array.grad
                    array.grad = None
        self._vectors.clear()


def detached(state: State) -> State:
    return [(h.detach(), c.detach()) for h, c in state]
