"""Names and layouts of AllenNLP's parameters, and how ours become theirs and theirs ours, bit for bit.

Theirs differ in two places: the character table has a row of zeros for padding in front, and a highway's two matrices are one, with the
gate negated, because it is the share of the input there and that of the transformed value here.
"""
# ruff: noqa: FBT001  the signatures are torch's

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elmofire.formats.config import BilmConfig, EncoderConfig

State = dict[str, Any]


class Name(NamedTuple):
    """One of their tensors, and those of ours that it is made of."""

    old: str
    ours: tuple[str, ...]
    join: Callable[..., Tensor] = lambda tensor: tensor
    split: Callable[[Tensor], tuple[Tensor, ...]] = lambda tensor: (tensor,)


def _with_padding(table: Tensor) -> Tensor:
    return torch.cat([table.new_zeros(1, table.shape[1]), table])


def _without_padding(table: Tensor) -> tuple[Tensor]:
    return (table[1:],)


def _highway(transform: Tensor, gate: Tensor) -> Tensor:
    return torch.cat([transform, -gate])


def _transform_and_gate(both: Tensor) -> tuple[Tensor, Tensor]:
    transform, gate = both.chunk(2)
    return transform, -gate


def encoder_names(config: EncoderConfig) -> Iterator[Name]:
    """Of `_ElmoCharacterEncoder`, ours as `model.encoder.Encoder` has them."""
    yield Name("_char_embedding_weights", ("characters",), _with_padding, _without_padding)
    for k in range(len(config.filters)):
        for part in ("weight", "bias"):
            yield Name(f"char_conv_{k}.{part}", (f"convolutions.{k}.{part}",))
    for k in range(config.highways):
        for part in ("weight", "bias"):
            ours = (f"highways.{k}.transform.{part}", f"highways.{k}.gate.{part}")
            yield Name(f"_highways._layers.{k}.{part}", ours, _highway, _transform_and_gate)
    if config.projection:
        for part in ("weight", "bias"):
            yield Name(f"_projection.{part}", (f"projection.{part}",))


def bilm_names(config: BilmConfig) -> Iterator[Name]:
    """Of `_ElmoBiLm`, ours as `model.bilm.BiLM` has them. The bias here holds the forget gate's 1, as theirs does."""
    for name in encoder_names(config.encoder):
        yield name._replace(old=f"_token_embedder.{name.old}", ours=tuple(f"encoder.{own}" for own in name.ours))
    for k in range(config.layers):
        for d, direction in enumerate(config.directions):
            old, ours = f"_elmo_lstm.{direction}_layer_{k}", f"stacks.{d}.{k}"
            yield Name(f"{old}.input_linearity.weight", (f"{ours}.weight_ih",))
            yield Name(f"{old}.state_linearity.weight", (f"{ours}.weight_hh",))
            yield Name(f"{old}.state_linearity.bias", (f"{ours}.bias",))
            if config.lstm_projection:
                yield Name(f"{old}.state_projection.weight", (f"{ours}.weight_hr",))


class OldNames(nn.Module):
    """A module whose one child `inner` is saved and loaded under the old names that `names` gives."""

    inner: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_saved_under_old_names)

    def names(self) -> Iterator[Name]:
        raise NotImplementedError

    def _load_from_state_dict(
        self,
        state_dict: State,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Rename what is there before the child is filled. What is missing or wrong is told by its old name, and stays as it is."""
        parameters = dict(self.inner.named_parameters())
        for name in self.names():
            current = tuple(parameters[own] for own in name.ours)
            key = prefix + name.old
            found = state_dict.pop(key, None)
            shape = name.join(*current).shape
            if found is None:
                if strict:
                    missing_keys.append(key)
            elif found.shape != shape:
                error_msgs.append(
                    f"size mismatch for {key}: copying a param with shape {found.shape} from checkpoint, "
                    f"the shape in current model is {shape}."
                )
            else:
                current = name.split(found)
            state_dict.update({f"{prefix}inner.{own}": tensor for own, tensor in zip(name.ours, current, strict=True)})
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _saved_under_old_names(module: OldNames, state_dict: State, prefix: str, local_metadata: Any) -> None:
    for name in module.names():
        state_dict[prefix + name.old] = name.join(*[state_dict.pop(f"{prefix}inner.{own}") for own in name.ours])
