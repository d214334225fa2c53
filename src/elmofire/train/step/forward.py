"""The loss of a batch: distinct words -> vectors -> both directions' stacks -> what each position's next word costs."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmofire.kernels import LstmState, lstmp
from elmofire.kernels.sampled_softmax import sampled_softmax_loss
from elmofire.model.bilm import BiLM
from elmofire.model.encoder import Affine
from elmofire.train.settings import DropoutSettings, LossSettings
from elmofire.train.step.full_softmax import full_softmax_loss


class Tensors(NamedTuple):
    """A batch on the device; D directions, T steps, B rows."""

    words: Tensor  # (W,) rows of the table of spellings
    inputs: Tensor  # (D, T, B) places in `words`
    targets: Tensor  # (D, T, B) rows of the head; -1: nothing
    negatives: Tensor | None  # (D, S) rows of the head; None: full softmax
    tries: Tensor | None  # (D,) how many draws they took
    resets: Tensor | None  # (D, T, B) not 0: zero state before that step


class BatchLoss(nn.Module):
    """A biLM with its head, and the sums of its losses over batches."""

    spellings: Tensor  # (types, W) token ids of every word of the corpus
    log_missed: Tensor  # (V,) of every word of the head

    def __init__(
        self, bilm: BiLM, spellings: Tensor, loss: LossSettings, dropout: DropoutSettings, *, precision: str
    ) -> None:
        super().__init__()
        assert bilm.head is not None
        self.bilm = bilm
        self.head = bilm.head
        self.precision = precision
        self.direct = False
        """Whether gradients of the head's rows are added to its gradient on the spot, which other ranks would not hear of."""
        self.factor = loss.factor
        self.dropout = dropout
        for module in bilm.encoder.modules():
            if isinstance(module, Affine):
                module.in_stages = True
        self.register_buffer("spellings", spellings, persistent=False)
        self.register_buffer("log_missed", _log_missed(len(bilm.head.weight)), persistent=False)

    def forward(self, batch: Tensors, state: LstmState, per_token: Tensor) -> tuple[Tensor, Tensor, LstmState]:
        """What is differentiated, the sum of the losses of each direction (D,), and the state after the batch.

        `per_token` (D,) is one over the tokens of the whole update in each direction: objectives of its parts and ranks then add up to
        the mean over tokens, of that over directions, times the loss's factor.
        """
        outputs, state = self.read(batch, state)
        losses = self.losses(F.dropout(outputs[:, -1], self.dropout.output, self.training), batch)
        objective = (losses * (per_token * (self.factor / len(losses))).to(losses.dtype)).sum()
        return objective, losses.detach(), LstmState(state.hidden.detach(), state.memory.detach())

    def read(self, batch: Tensors, state: LstmState) -> tuple[Tensor, LstmState]:
        """The outputs of all layers (D, L, T, B, P), and the state."""
        config = self.bilm.config
        device = batch.words.device.type
        half = self.precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False):
            vectors = self.bilm.encoder(self.spellings.index_select(0, batch.words).long())
            inputs = vectors.index_select(0, batch.inputs.flatten()).unflatten(0, batch.inputs.shape)
            inputs = F.dropout(inputs, self.dropout.input, self.training)
        return lstmp(
            inputs,
            self.bilm.stack_weights(),
            state,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
            skip_connections=config.skip_connections,
            dropout=self.dropout.layers if self.training else 0.0,
            resets=None if batch.resets is None else batch.resets != 0,
            precision=self.precision if half else None,
        )

    def losses(self, tops: Tensor, batch: Tensors) -> Tensor:
        """The sums of -log p(target) over the batch: top outputs (D, T, B, P) -> (D,)."""
        tops, targets = tops.flatten(1, 2), batch.targets.flatten(1).long()
        if batch.negatives is None:
            losses = full_softmax_loss(
                tops.flatten(0, 1), self.head.weight, self.head.bias, targets.flatten(), precision=self.precision
            )
            return losses.unflatten(0, targets.shape).sum(dim=1)
        assert batch.tries is not None
        directions, samples = batch.negatives.shape
        there = targets >= 0
        targets = targets.clamp_min(0)
        # One gather, so that one pass over the head adds up all gradients of its rows.
        wanted = torch.cat([batch.negatives.flatten().long(), targets.flatten()])
        weights = _Rows.apply(self.head.weight, wanted) if self.direct else self.head.weight.index_select(0, wanted)
        biases = self.head.bias.index_select(0, wanted)
        log_counts = self._log_counts(wanted, batch.tries, samples, targets.shape[1])
        sums: list[Tensor] = []
        for d in range(directions):
            sampled = slice(d * samples, (d + 1) * samples)
            first = directions * samples + d * targets.shape[1]
            true = slice(first, first + targets.shape[1])
            losses = sampled_softmax_loss(
                tops[d].bfloat16() if self.precision == "bfloat16" else tops[d],
                weights[sampled],
                biases[sampled],
                weights[true],
                biases[true],
                sampled_ids=batch.negatives[d].long(),
                targets=targets[d],
                sampled_log_counts=log_counts[sampled],
                target_log_counts=log_counts[true],
            )
            sums.append(torch.where(there[d], losses, 0.0).sum())
        return torch.stack(sums)

    def _log_counts(self, ids: Tensor, tries: Tensor, samples: int, rows: int) -> Tensor:
        """How often words are expected among the distinct words of so many draws, as logarithms."""
        draws = torch.cat([tries[:, None].expand(-1, samples).flatten(), tries[:, None].expand(-1, rows).flatten()])
        return torch.log(-torch.expm1(draws * self.log_missed[ids]))


class _Rows(torch.autograd.Function):
    """Rows of a parameter that has a gradient already: theirs are added to it, without one of the parameter's size in between."""

    @staticmethod
    def forward(ctx, parameter: Tensor, rows: Tensor) -> Tensor:
        ctx.parameter = parameter
        ctx.save_for_backward(rows)
        return parameter.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradients: Tensor) -> tuple[None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.parameter.grad.index_add_(0, *ctx.saved_tensors, gradients)
        return None, None


def _log_missed(words: int) -> Tensor:
    """log(1 - p) of the log-uniform distribution over ids: the chance that one draw is another word."""
    ids = torch.arange(words, dtype=torch.float64)
    chance = torch.log1p(1 / (ids + 1)) / torch.log(torch.tensor(words + 1.0, dtype=torch.float64))
    return torch.log1p(-chance).float()
