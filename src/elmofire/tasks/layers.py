"""Layers that task models are made of: words from their characters, and tags that agree with one another.

Shapes: B sentences, T tokens, W characters of a word, K tags.
"""

import elmofire.model  # noqa: F401  says which extra is missing, before torch does

# isort: split
import torch
from torch import Tensor, nn
from torch.nn import functional

from elmofire.tasks.tagging import TagSet
from elmofire.text.characters import BYTES

CHARACTER_PADDING = BYTES  # the last id


class CharacterCnn(nn.Module):
    """A word's vector from its bytes: one convolution, ReLU, and the maximum over the word.

    >>> from elmofire.text.characters import character_ids
    >>> CharacterCnn()(torch.from_numpy(character_ids(["cat", "a"]))).shape
    torch.Size([2, 128])
    """

    def __init__(self, *, character_dim: int = 16, filters: int = 128, width: int = 3) -> None:
        super().__init__()
        self.width = width
        self.characters = nn.Embedding(BYTES + 1, character_dim)
        self.convolution = nn.Linear(width * character_dim, filters)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, W) as `character_ids` makes them, W cut or not -> (n, filters)"""
        # Empty words alone are too short for a window.
        ids = functional.pad(ids, (0, max(0, self.width - ids.shape[1])), value=CHARACTER_PADDING)
        windows = self.characters(ids).unfold(1, self.width, 1).flatten(2)  # (n, W - width + 1, dim * width)
        inside = ids[:, self.width - 1 :] != CHARACTER_PADDING  # ReLU's least is 0, so 0 is never a false maximum
        return (self.convolution(windows).relu() * inside[:, :, None]).amax(dim=1)


class Crf(nn.Module):
    """A linear-chain conditional random field: scores of tags that follow one another, over sequences the tag set allows.

    A sequence's score is the sum of its tokens' scores, of its transitions, and of its first and last tag's. Everything is in float64:
    sums are taken over probabilities, which there bear steps whose scores are some 700 apart.
    """

    follows: Tensor
    first: Tensor
    last: Tensor

    def __init__(self, tags: TagSet) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(len(tags), len(tags)))  # from the row's tag to the column's
        self.start = nn.Parameter(torch.zeros(len(tags)))
        self.end = nn.Parameter(torch.zeros(len(tags)))
        for name in ("follows", "first", "last"):
            self.register_buffer(name, torch.from_numpy(getattr(tags, name)), persistent=False)

    def loss(self, scores: Tensor, mask: Tensor, tags: Tensor) -> Tensor:
        """(B, T, K), (B, T), (B, T) -> (B,): minus the log probability of these tags, which must be allowed ones.

        Sentences stand at the left of the mask and have at least one token.
        """
        scores = scores.double()
        return self._log_partition(scores, mask) - self._score(scores, mask, tags)

    def _score(self, scores: Tensor, mask: Tensor, tags: Tensor) -> Tensor:
        tokens = (scores.gather(2, tags[:, :, None])[:, :, 0] * mask).sum(dim=1)
        steps = (self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(dim=1)
        last = tags.gather(1, mask.sum(dim=1, keepdim=True) - 1)[:, 0]
        return tokens + steps + self.start[tags[:, 0]] + self.end[last]

    def _log_partition(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The log of the sum over all allowed sequences, as a product of K x K matrices, one for each step.

        Neighbors are multiplied in pairs, and the products again: log2(T) rounds instead of T, which is what counts on a GPU.
        """
        highest = scores.amax(dim=2)
        likelihoods = (scores - highest[:, :, None]).exp()
        steps = _exp(self.transitions, self.follows) * likelihoods[:, 1:, None, :]  # (B, T - 1, K, K)
        nothing = torch.eye(len(self.start), dtype=steps.dtype, device=steps.device)
        start = (_exp(self.start, self.first) * likelihoods[:, 0])[:, None, None].expand(-1, 1, *nothing.shape)
        inside = torch.where(mask[:, 1:, None, None], steps, nothing)
        product, log_scale = _chain(torch.cat([start, inside], dim=1), nothing)
        total = product[:, 0] @ _exp(self.end, self.last)  # all rows are the same
        return total.log() + log_scale + (highest * mask).sum(dim=1)

    @torch.no_grad()
    def best(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The allowed tags with the highest score, by Viterbi: (B, T, K), (B, T) -> (B, T); what is beyond the mask means nothing."""
        scores = scores.double()
        transitions = self.transitions.double().masked_fill(~self.follows, -torch.inf)
        unchanged = torch.arange(len(self.start), device=scores.device)
        so_far = self.start.masked_fill(~self.first, -torch.inf) + scores[:, 0]  # (B, K)
        arrows: list[Tensor] = []
        for t in range(1, scores.shape[1]):
            highest, arrow = (so_far[:, :, None] + transitions).max(dim=1)
            runs = mask[:, t, None]
            so_far = torch.where(runs, highest + scores[:, t], so_far)
            arrows.append(torch.where(runs, arrow, unchanged))
        tags = [(so_far + self.end.masked_fill(~self.last, -torch.inf)).argmax(dim=1, keepdim=True)]
        for arrow in reversed(arrows):
            tags.append(arrow.gather(1, tags[-1]))
        return torch.cat(tags[::-1], dim=1)


def _exp(scores: Tensor, allowed: Tensor) -> Tensor:
    """exp where allowed, else an exact zero that gets no gradient."""
    return scores.double().masked_fill(~allowed, 0.0).exp() * allowed


def _chain(matrices: Tensor, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """The product (B, K, K) of T matrices (B, T, K, K), and the log of what it was divided by (B,)"""
    sentences, steps = matrices.shape[:2]
    lacking = (1 << (steps - 1).bit_length()) - steps  # to a power of two, so that there is always a neighbor
    matrices = torch.cat([matrices, nothing.expand(sentences, lacking, -1, -1)], dim=1)
    log_scale = matrices.new_zeros(sentences)
    while True:
        scale = matrices.detach().amax(dim=(2, 3), keepdim=True)
        log_scale = log_scale + scale.log().sum(dim=1)[:, 0, 0]
        matrices = matrices / scale
        if matrices.shape[1] == 1:
            return matrices[:, 0], log_scale
        left, right = matrices.unflatten(1, (-1, 2)).unbind(dim=2)
        matrices = left @ right
