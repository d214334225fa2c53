"""AllenNLP's `_ElmoBiLm` and its two parts, on `model.bilm.BiLM`."""
# ruff: noqa: FBT001  the signatures are AllenNLP's

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from elmofire.compat.allennlp.names import Name, OldNames, bilm_names, encoder_names
from elmofire.errors import InputError, ModelError
from elmofire.formats import load_weights
from elmofire.kernels import LstmState
from elmofire.model.bilm import BiLM
from elmofire.model.encoder import Encoder
from elmofire.text.characters import END, START, character_ids

File = str | os.PathLike[str]

_CACHED_AT_ONCE = 1024  # words of `vocab_to_cache` that go through the filters together


def load_bilm(options_file: File, weight_file: File) -> BiLM:
    """A biLM of two files, its bias with the forget gate's constant inside, as AllenNLP's has it; no head."""
    weights = load_weights((options_file, weight_file))
    if not weights.config.encoder.filters:
        raise ModelError(
            f"{os.fspath(options_file)}: the model takes whole words, which AllenNLP's ELMo never did",
            hint="elmofire.Elmo.load and elmofire.Embedder.load take it",
        )
    bilm = BiLM.from_weights(replace(weights, config=replace(weights.config, head=0)))
    cells, constant = bilm.config.cells, bilm.config.forget_bias
    with torch.no_grad():
        for stack in bilm.stacks:
            for layer in stack:  # pyright: ignore[reportGeneralTypeIssues]
                layer.bias[cells : 2 * cells] += constant
    bilm.config = replace(bilm.config, forget_bias=0.0)
    return bilm


class _ElmoCharacterEncoder(OldNames):
    """Character ids (B, T, W) -> vectors without context (B, T + 2, P), the two boundaries included."""

    inner: Encoder

    def __init__(self, options_file: File, weight_file: File, requires_grad: bool = False) -> None:
        super().__init__()
        self.inner = load_bilm(options_file, weight_file).encoder.requires_grad_(requires_grad)

    @classmethod
    def of(cls, encoder: Encoder) -> "_ElmoCharacterEncoder":
        """The same over an encoder that is there already, sharing its parameters."""
        made = cls.__new__(cls)
        OldNames.__init__(made)
        made.inner = encoder
        return made

    def names(self) -> Iterator[Name]:
        return encoder_names(self.inner.config)

    def get_output_dim(self) -> int:
        return self.inner.config.width

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        check_are_ids(inputs)
        room = self.inner.config.max_characters
        if inputs.dim() != 3 or inputs.shape[2] != room:
            raise InputError(
                f"the ids have the shape {tuple(inputs.shape)}, but should have (sentences, tokens, {room})"
            )
        inputs = inputs.to(self.inner.characters.device)
        lengths = lengths_of((inputs > 0).any(dim=2))
        boundaries = self.boundary_ids().to(inputs.device)
        # The distinct tokens alone go through the filters: most of a batch is words that stand in it twice.
        rows = torch.cat([boundaries.new_zeros(1, room), boundaries, inputs.flatten(0, 1)])
        distinct, place = rows.unique(dim=0, return_inverse=True)
        vectors = self.inner(distinct)[place]
        embedding, mask = with_boundaries(vectors[3:].unflatten(0, inputs.shape[:2]), lengths, vectors[1], vectors[2])
        return {"token_embedding": embedding, "mask": mask}

    def boundary_ids(self) -> Tensor:
        return torch.from_numpy(character_ids([START, END], self.inner.config.max_characters).astype(np.int64))


class ElmoLstm:
    """What `_ElmoBiLm._elmo_lstm` was used for: its carried state. Zero state for every batch unless `stateful`."""

    def __init__(self, bilm: "_ElmoBiLm") -> None:
        self._bilm = bilm

    @property
    def stateful(self) -> bool:
        return self._bilm.stateful

    @stateful.setter
    def stateful(self, value: bool) -> None:
        self._bilm.stateful = value

    @property
    def _states(self) -> tuple[Tensor, Tensor] | None:
        """(L, rows, 2P) and (L, rows, 2D), forward first."""
        state = self._bilm.carried
        return None if state is None else (torch.cat(list(state.hidden), dim=2), torch.cat(list(state.memory), dim=2))

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Back to zero: all rows, or those that the mask (rows,) marks."""
        state = self._bilm.carried
        if mask is None or state is None:
            self._bilm.carried = None
            return
        if mask.shape != (state.hidden.shape[2],):
            raise InputError(
                f"the mask has the shape {tuple(mask.shape)}, but {state.hidden.shape[2]} rows are carried"
            )
        marked = mask.to(state.hidden.device, torch.bool)[:, None]
        self._bilm.carried = LstmState(state.hidden.masked_fill(marked, 0.0), state.memory.masked_fill(marked, 0.0))


class _ElmoBiLm(OldNames):
    """All layers of a batch, boundaries included: `{"activations": [(B, T + 2, 2P)] * (L + 1), "mask": (B, T + 2)}`.

    Every batch starts from zero. With `stateful=True` row r goes on from where row r of the last batch was, as in AllenNLP, until
    `reset_states()`; state dicts do not hold it.
    """

    inner: BiLM

    def __init__(
        self,
        options_file: File,
        weight_file: File,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        stateful: bool = False,
    ) -> None:
        super().__init__()
        self.inner = load_bilm(options_file, weight_file).requires_grad_(requires_grad)
        self.stateful = stateful
        self.carried: LstmState | None = None
        self._requires_grad = requires_grad
        self._word_embedding: nn.Embedding | None = None
        if vocab_to_cache:
            if requires_grad:
                warnings.warn(
                    "vocab_to_cache keeps word vectors as they are now, while requires_grad trains what makes them",
                    stacklevel=2,
                )
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def names(self) -> Iterator[Name]:
        return bilm_names(self.inner.config)

    @property
    def num_layers(self) -> int:
        """Layer 0 counted."""
        return self.inner.config.layers + 1

    @property
    def _token_embedder(self) -> _ElmoCharacterEncoder:
        return _ElmoCharacterEncoder.of(self.inner.encoder)

    @property
    def _elmo_lstm(self) -> ElmoLstm:
        return ElmoLstm(self)

    def get_output_dim(self) -> int:
        return self.inner.config.width

    def reset_states(self) -> None:
        self.carried = None

    @torch.no_grad()
    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Keep the vectors of these words; the first stands for padding, so its own vector is not kept."""
        device = self.inner.encoder.characters.device
        ids = torch.from_numpy(character_ids(tokens, self.inner.config.encoder.max_characters).astype(np.int64)).to(
            device
        )
        vectors = torch.cat([self.inner.encoder(part) for part in ids.split(_CACHED_AT_ONCE)])
        vectors[0] = 0.0
        self._word_embedding = nn.Embedding.from_pretrained(vectors, freeze=not self._requires_grad, padding_idx=0)

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, list[Tensor] | Tensor]:
        """Ids (B, T, 50); or word ids (B, T) of `vocab_to_cache`, 0 for padding. Words beyond it are read from `inputs`."""
        cached = self._cached(word_inputs)
        if cached is None:
            encoded = self._token_embedder(inputs)
            vectors, mask = encoded["token_embedding"], encoded["mask"]
        else:
            vectors, mask = cached
        lengths = mask.sum(dim=1)
        start = self._start(len(lengths)) if self.stateful else None
        layers, after = self.inner.run(vectors, lengths, start)
        if self.stateful:
            self._carry(after)
        return {"activations": layers, "mask": mask}

    def _cached(self, words: Tensor | None) -> tuple[Tensor, Tensor] | None:
        table = self._word_embedding
        if (
            table is None
            or words is None
            or (words.numel() and not 0 <= int(words.min()) <= int(words.max()) < len(table.weight))
        ):
            return None
        words = words.to(table.weight.device)
        start, end = self.inner.encoder(self._token_embedder.boundary_ids().to(words.device))
        return with_boundaries(table(words), lengths_of(words > 0), start, end)

    def _start(self, rows: int) -> LstmState:
        """The carried rows, and zeros for those that are new."""
        fresh = self.inner.zero_state(rows)
        if self.carried is None:
            return fresh
        common = min(rows, self.carried.hidden.shape[2])
        return LstmState(*[
            torch.cat([old[:, :, :common].to(new), new[:, :, common:]], dim=2)
            for old, new in zip(self.carried, fresh, strict=True)
        ])  # fmt: skip

    def _carry(self, after: LstmState) -> None:
        """Rows beyond this batch stay as they were."""
        moved = [tensor.detach() for tensor in after]
        if self.carried is not None:
            rows = after.hidden.shape[2]
            moved = [
                torch.cat([new, old[:, :, rows:].to(new)], dim=2) for new, old in zip(moved, self.carried, strict=True)
            ]
        self.carried = LstmState(*moved)


def check_are_ids(inputs: object) -> None:
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"the input is {type(inputs).__name__}, but should be a tensor of character ids",
            hint="batch_to_ids(sentences) makes it of token lists",
        )


def lengths_of(present: Tensor) -> Tensor:
    """Tokens per row of a mask (B, T) whose rows are padded at their end."""
    lengths = present.sum(dim=1)
    if bool((present != (torch.arange(present.shape[1], device=present.device) < lengths[:, None])).any()):
        raise InputError("padding stands between tokens", hint="pad at the end of each sentence only")
    return lengths


def with_boundaries(vectors: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, E) -> (B, T + 2, E) with the start marker's vector first and the end marker's behind each row, and the mask."""
    rows, steps, width = vectors.shape
    step = torch.arange(steps + 2, device=vectors.device)
    inner = torch.cat([start.expand(rows, 1, width), vectors, vectors.new_zeros(rows, 1, width)], dim=1)
    last = (step == lengths[:, None] + 1)[:, :, None]
    return torch.where(last, end, inner), step < lengths[:, None] + 2


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T + 2, E) -> (B, T, E) without the first and last of each row, zeros behind."""
    step = torch.arange(tensor.shape[1], device=tensor.device)
    inner = ((step > 0) & (step < mask.sum(dim=1, keepdim=True) - 1))[:, 1:-1]
    return torch.where(inner[:, :, None], tensor[:, 1:-1], 0.0), inner
