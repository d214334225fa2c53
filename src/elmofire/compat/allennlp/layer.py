"""AllenNLP's `Elmo`, `ElmoTokenEmbedder` and `ScalarMix`, under the old parameter names."""
# ruff: noqa: FBT001  the signatures are AllenNLP's

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmofire.compat.allennlp.bilm import File, _ElmoBiLm, check_are_ids, remove_sentence_boundaries
from elmofire.compat.allennlp.names import State
from elmofire.errors import InputError
from elmofire.model import mix

_PUBLISHED = (
    "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_"
)
DEFAULT_OPTIONS_FILE = f"{_PUBLISHED}options.json"  # the old defaults: allenai/original of the catalogue
DEFAULT_WEIGHT_FILE = f"{_PUBLISHED}weights.hdf5"


class ScalarMix(mix.ScalarMix):
    """`gamma * sum_j softmax(s)_j * tensor_j`, saved as `scalar_parameters.j` and `gamma`.

    Layer norm is AllenNLP's: one mean and variance over the whole batch, boundaries counted.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(mixture_size, weights=initial_scalar_parameters)
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        self.requires_grad_(trainable)

    @property
    def scalar_parameters(self) -> list[Tensor]:
        """The weights before the softmax, each a tensor of one number that shares the parameter's memory."""
        return list(self.weights.split(1))

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        if self.do_layer_norm:
            if mask is None:
                raise InputError("a mix with layer norm needs the mask too")
            eps = 1e-4 if layers[0].dtype == torch.float16 else 1e-13
            layers = [mix.normalize_over_batch(layer, mask, eps) for layer in layers]
        return super().forward(layers)

    def _save_to_state_dict(self, destination: State, prefix: str, keep_vars: bool) -> None:
        weights, gamma = (self.weights, self.gamma) if keep_vars else (self.weights.detach(), self.gamma.detach())
        destination[f"{prefix}gamma"] = gamma.reshape(1)
        destination.update({f"{prefix}scalar_parameters.{j}": weight for j, weight in enumerate(weights.split(1))})

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
        names = [f"{prefix}gamma", *[f"{prefix}scalar_parameters.{j}" for j in range(self.mixture_size)]]
        with torch.no_grad():
            for name, place in zip(names, [self.gamma.view(1), *self.weights.split(1)], strict=True):
                found = state_dict.get(name)
                if found is None:
                    missing_keys.extend([name] if strict else [])
                elif found.shape != (1,):
                    error_msgs.append(
                        f"size mismatch for {name}: the checkpoint has {found.shape}, the mix one number."
                    )
                else:
                    place.copy_(found)
        if strict:
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in names)


class Elmo(nn.Module):
    """`num_output_representations` mixes of a biLM's layers, from character ids.

    Signature, outputs and state dict are AllenNLP's; `stateful=True` brings back its carried state (see `_ElmoBiLm`). Without it,
    every batch starts from zero, so that a sentence always has the same vectors.

    >>> import tempfile
    >>> from elmofire import load_weights, save_weights
    >>> from elmofire.compat.allennlp import Elmo, batch_to_ids
    >>> folder = tempfile.mkdtemp()
    >>> save_weights(load_weights("random-small"), folder, to="hdf5")
    >>> elmo = Elmo(f"{folder}/options.json", f"{folder}/weights.hdf5", 2, dropout=0)
    >>> output = elmo(batch_to_ids([["Stick", "to", "the", "plan"], ["Why", "?"]]))
    >>> [tuple(found.shape) for found in output["elmo_representations"]], output["mask"].sum().item()
    ([(2, 4, 256), (2, 4, 256)], 6)
    >>> list(elmo.state_dict())[0]
    '_elmo_lstm._token_embedder._char_embedding_weights'
    """

    def __init__(
        self,
        options_file: File | None,
        weight_file: File | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
        *,
        stateful: bool = False,
    ) -> None:
        super().__init__()
        if module is not None:
            if options_file is not None or weight_file is not None:
                raise InputError("a module takes the place of options_file and weight_file, so both should be None")
            if stateful:
                raise InputError("whether a module carries its state is its own affair, so stateful should be False")
            self._elmo_lstm = module
        elif options_file is None or weight_file is None:
            raise InputError("options_file and weight_file are both needed, unless a module is given")
        else:
            self._elmo_lstm = _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache, stateful=stateful)
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(p=dropout)
        self._mixes = num_output_representations
        for k in range(num_output_representations):
            learned = scalar_mix_parameters is None
            layers: int = self._elmo_lstm.num_layers  # pyright: ignore[reportAssignmentType]
            self.add_module(f"scalar_mix_{k}", ScalarMix(layers, do_layer_norm, scalar_mix_parameters, learned))

    @property
    def _scalar_mixes(self) -> list[ScalarMix]:
        return [self.get_submodule(f"scalar_mix_{k}") for k in range(self._mixes)]  # pyright: ignore[reportReturnType]

    def get_output_dim(self) -> int:
        return self._elmo_lstm.get_output_dim()  # pyright: ignore[reportCallIssue]

    def reset_states(self) -> None:
        """The next batch starts from zero, with `stateful` too."""
        self._elmo_lstm.reset_states()  # pyright: ignore[reportCallIssue]

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Ids (B, .., T, 50) -> `{"elmo_representations": [(B, .., T, 2P)], "mask": (B, .., T)}`, T + 2 with boundaries kept.

        With `vocab_to_cache`, `word_inputs` (B, .., T) are places in it, 0 for padding.
        """
        check_are_ids(inputs)
        if inputs.dim() < 3:
            raise InputError(
                f"the ids have the shape {tuple(inputs.shape)}, but should have (sentences, .., tokens, 50)"
            )
        if word_inputs is not None and not self._has_cached_vocab:
            warnings.warn("word_inputs are not read without a vocab_to_cache", stacklevel=2)
            word_inputs = None
        outer = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        flat_words = None if word_inputs is None else word_inputs.flatten(0, -2)
        output = self._elmo_lstm(inputs.flatten(0, -3), flat_words)
        bounded: Tensor = output["mask"]
        mask, representations = bounded, []
        for scalar_mix in self._scalar_mixes:
            mixed = scalar_mix(output["activations"], bounded)
            if not self._keep_sentence_boundaries:
                mixed, mask = remove_sentence_boundaries(mixed, bounded)
            representations.append(self._dropout(mixed).unflatten(0, outer))
        if not self._keep_sentence_boundaries and not representations:
            mask = bounded[:, 2:]
        return {"elmo_representations": representations, "mask": mask.unflatten(0, outer)}


class ElmoTokenEmbedder(nn.Module):
    """One mix, projected to `projection_dim` where that is given: ids (B, T, 50) -> (B, T, width)."""

    def __init__(
        self,
        options_file: File = DEFAULT_OPTIONS_FILE,
        weight_file: File = DEFAULT_WEIGHT_FILE,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        stateful: bool = False,
    ) -> None:
        super().__init__()
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            stateful=stateful,
        )
        width = self._elmo.get_output_dim()
        self._projection = nn.Linear(width, projection_dim) if projection_dim else None
        self.output_dim = projection_dim or width

    def get_output_dim(self) -> int:
        return self.output_dim

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        vectors = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)
