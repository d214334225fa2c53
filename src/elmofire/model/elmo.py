"""ELMo as a layer of other models: one biLM, one or more learned mixes of its layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elmofire.engine.batches import token_ids
from elmofire.errors import InputError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.names import DEFAULT_MODEL
from elmofire.formats.weights import require_kind
from elmofire.kernels import LstmState
from elmofire.model.bilm import BiLM
from elmofire.model.mix import ScalarMix, normalize_over_batch
from elmofire.text.token_lists import Sentences, each_sentence, tokens_of

# Over which positions the statistics go, and what keeps the root from zero.
_LAYER_NORMS = {"allennlp": (True, 1e-13), "bilm-tf": (False, 1e-12)}


class ElmoOutput(NamedTuple):
    """What a batch gives."""

    representations: list[Tensor]  # each (B, T, D); T + 2 with boundaries kept
    mask: Tensor  # (B, T) bool
    state: LstmState  # detached


class Elmo(nn.Module):
    """The ELMo layer: `representations` mixes of a biLM's layers, each with weights of its own.

    The biLM is frozen unless `trainable`; the mixes are trained unless `mix_weights` or `gamma` fix them. `layer_norm` is off, or
    2018's in either variant: "allennlp" (statistics with the boundary markers) or "bilm-tf" (without). `top_only` takes the top
    layer times gamma. Dropout falls on each mixed representation.

    >>> elmo = Elmo.load("en-small", representations=2, dropout=0.0)
    >>> output = elmo([["Stick", "to", "the", "plan"], ["Why", "?"]])
    >>> [tuple(representation.shape) for representation in output.representations], output.mask.sum().item()
    ([(2, 4, 256), (2, 4, 256)], 6)
    """

    def __init__(
        self,
        bilm: BiLM,
        *,
        representations: int = 1,
        dropout: float = 0.5,
        mix_weights: Sequence[float] | None = None,
        gamma: float | None = None,
        layer_norm: str | None = None,
        top_only: bool = False,
        keep_boundaries: bool = False,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        require_kind(bilm, "Elmo", BiLM)
        if representations < 1:
            raise ValueError(f"representations is {representations}, but should be at least 1")
        if layer_norm is not None and layer_norm not in _LAYER_NORMS:
            raise ValueError(f"layer_norm is {layer_norm!r}, but should be None or one of {', '.join(_LAYER_NORMS)}")
        if len(set(bilm.config.layer_widths)) > 1 and not top_only:
            raise ValueError(
                f"layers of different widths {bilm.config.layer_widths} cannot be mixed; use top_only=True"
            )
        if top_only and mix_weights is not None:
            raise ValueError("top_only leaves nothing to mix: give either it or mix_weights")
        self.bilm = bilm.requires_grad_(trainable)
        self.layer_norm = layer_norm
        self.top_only = top_only
        self.keep_boundaries = keep_boundaries
        layers, weights = (1, [0.0]) if top_only else (bilm.config.layers + 1, mix_weights)
        self.mixes = nn.ModuleList(ScalarMix(layers, weights=weights, gamma=gamma) for _ in range(representations))
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def load(cls, what: Loadable = DEFAULT_MODEL, representations: int = 1, **options) -> "Elmo":
        """The layer over whatever `load_weights` takes; `options` are the constructor's. A head, which vectors do not need, stays behind."""
        weights = load_weights(what)
        headless = replace(weights, config=replace(weights.config, head=0))
        return cls(BiLM.from_weights(headless), representations=representations, **options)

    @property
    def width(self) -> int:
        """Of each representation's vectors."""
        return self.bilm.config.width

    def penalty(self, strength: float = 0.001) -> Tensor:
        """`lambda * ||w||^2` over all mixes, to add to a loss; the paper's lambda was 0.001 to 1."""
        return strength * torch.stack([mix.penalty() for mix in self.mixes]).sum()  # pyright: ignore[reportCallIssue]

    def ids(self, sentences: Sentences) -> Tensor:
        """Token lists -> (B, T, W) ids, padded with zeros; for a data loader that prepares batches beforehand."""
        token_lists = _token_lists(sentences)
        rows = self._rows([token for tokens in token_lists for token in tokens])
        padded = torch.zeros(len(token_lists), max(map(len, token_lists), default=0), rows.shape[1], dtype=torch.long)
        first = 0
        for b, sentence in enumerate(token_lists):
            padded[b, : len(sentence)] = rows[first : first + len(sentence)]
            first += len(sentence)
        return padded

    def _rows(self, tokens: Sequence[str]) -> Tensor:
        ids = token_ids(tokens, self.bilm.config, self.bilm.vocabulary, self.bilm.alphabet)
        return torch.from_numpy(ids.astype(np.int64))

    def forward(self, sentences: Sentences | Tensor, state: LstmState | None = None) -> ElmoOutput:
        """Token lists, or ids (B, T, W) as `ids` makes them. With a state, row r goes on from its row r."""
        if state is not None and not isinstance(state, LstmState):
            raise InputError(f"state is {type(state).__name__}, but should be the `state` of an output of this layer")
        ids = sentences if isinstance(sentences, Tensor) else self.ids(sentences)
        ids = ids.to(self.bilm.stacks[0][0].bias.device)  # pyright: ignore[reportIndexIssue, reportArgumentType]
        distinct, tokens, lengths = self._bounded(ids)
        layers, after = self.bilm(distinct, tokens, lengths, state)
        step = torch.arange(tokens.shape[1], device=ids.device)
        bounded = step < lengths[:, None]
        inner = (step > 0) & (step < lengths[:, None] - 1)
        if self.top_only:
            layers = layers[-1:]
        if self.layer_norm is not None:
            with_boundaries, eps = _LAYER_NORMS[self.layer_norm]
            layers = [normalize_over_batch(layer, bounded if with_boundaries else inner, eps) for layer in layers]
        mixed = [mix(layers) for mix in self.mixes]
        mask = bounded
        if not self.keep_boundaries:
            mask = inner[:, 1:-1]
            mixed = [torch.where(mask[:, :, None], representation[:, 1:-1], 0.0) for representation in mixed]
        detached = LstmState(after.hidden.detach(), after.memory.detach())
        return ElmoOutput([self.dropout(representation) for representation in mixed], mask, detached)

    def _bounded(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids without boundaries -> distinct tokens' ids, their places (B, T + 2) with boundaries, lengths."""
        markers = self._rows([self.bilm.alphabet.start, self.bilm.alphabet.end]).to(ids.device)
        if ids.dtype.is_floating_point or ids.dim() != 3 or ids.shape[2] != markers.shape[1]:
            raise InputError(
                f"the ids are {ids.dtype} of the shape {tuple(ids.shape)}, but should be integers of the shape (sentences, tokens, {markers.shape[1]})",
                hint="`ids` makes them of lists of tokens",
            )
        present = (ids > 0).any(dim=2)
        lengths = present.sum(dim=1)
        if bool((present != (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])).any()):
            raise InputError("rows of zeros stand between tokens", hint="pad at the end of each sentence only")
        rows = torch.cat([torch.zeros_like(markers[:1]), markers, ids.flatten(0, 1)])
        distinct, place = rows.unique(dim=0, return_inverse=True)
        tokens = torch.full((ids.shape[0], ids.shape[1] + 2), int(place[0]), device=ids.device)
        tokens[:, 0] = place[1]
        tokens[:, 1:-1] = place[3:].reshape(ids.shape[:2])
        tokens[torch.arange(len(tokens), device=ids.device), lengths + 1] = place[2]
        return distinct, tokens, lengths + 2


def _token_lists(sentences: Sentences) -> list[list[str]]:
    found: list[list[str]] = []
    for number, sentence in enumerate(each_sentence(sentences)):
        if isinstance(sentence, str):
            raise InputError(
                "the Elmo layer takes lists of tokens, not strings", hint="split or tokenize each sentence first"
            )
        found.append(tokens_of(sentence, number))
    return found
