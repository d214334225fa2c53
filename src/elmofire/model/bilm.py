"""The biLM in torch: an encoder and one stack of LSTM layers per direction, built from `Weights` and given back as such."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from elmofire.formats.config import FORWARD, BilmConfig, tensor_shapes
from elmofire.formats.weights import ENGLISH, Array, Weights
from elmofire.kernels import LayerWeights, LstmState, lstmp
from elmofire.model.encoder import Affine, Encoder
from elmofire.text.characters import Alphabet, ByteAlphabet
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary


class LstmLayer(nn.Module):
    """The parameters of one layer of one direction; the bias is without `forget_bias`."""

    def __init__(self, inputs: int, config: BilmConfig) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * config.cells, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * config.cells, config.projection))
        self.bias = nn.Parameter(torch.empty(4 * config.cells))
        self.weight_hr = nn.Parameter(torch.empty(config.projection, config.cells)) if config.lstm_projection else None


class BiLM(nn.Module):
    """Both language models and their shared encoder.

    >>> from elmofire import BiLM, load_weights
    >>> bilm = BiLM.from_weights(load_weights("random-small"))
    >>> layers, state = bilm(torch.ones(1, 50, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 2]))
    >>> len(layers), layers[2].shape
    (3, torch.Size([2, 3, 256]))
    """

    def __init__(self, config: BilmConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary: Vocabulary | None = None
        self.alphabet: Alphabet = ByteAlphabet()
        self.tokenizer: TokenizerInfo = ENGLISH
        self.encoder = Encoder(config.encoder)
        self.stacks = nn.ModuleList(
            nn.ModuleList(
                LstmLayer(config.encoder.width if k == 0 else config.projection, config) for k in range(config.layers)
            )
            for _ in config.directions
        )
        # Logits over the vocabulary: one head serves both directions.
        self.head = Affine(config.head, config.projection) if config.head else None

    @classmethod
    def from_weights(cls, weights: Weights) -> "BiLM":
        """Build the module and fill it, one array at a time."""
        bilm = cls(weights.config)
        bilm.vocabulary, bilm.alphabet, bilm.tokenizer = weights.vocabulary, weights.alphabet, weights.tokenizer
        with torch.no_grad():
            for name, parameter in bilm.arrays().items():
                array = weights.arrays[name]
                # Mapped files are read-only, which torch does not know; this only reads.
                source = torch.from_numpy(array if array.flags.writeable else array.copy())
                parameter.copy_(source)
        return bilm

    def weights(self) -> Weights:
        """The parameters as they are now, for any format to write."""
        return Weights(
            config=self.config,
            arrays=_Parameters(self.arrays()),
            vocabulary=self.vocabulary,
            alphabet=self.alphabet,
            tokenizer=self.tokenizer,
        )

    def arrays(self) -> dict[str, nn.Parameter]:
        """Parameters under the names and in the order that files have."""
        parameters = dict(self.named_parameters())
        return {name: parameters[self._parameter_name(name)] for name in tensor_shapes(self.config)}

    def _parameter_name(self, name: str) -> str:
        direction, _, rest = name.partition(".")
        if direction in self.config.directions:
            return f"stacks.{self.config.directions.index(direction)}.{rest}"
        return name

    def forward(
        self, ids: Tensor, tokens: Tensor, lengths: Tensor, state: LstmState | None = None
    ) -> tuple[list[Tensor], LstmState]:
        """Layers 0..L, each (B, T, D * width), and the state after the batch.

        `ids` are those of the distinct tokens; `tokens` (B, T) say which of them stands where, boundary markers included;
        past its length a row gives zeros.
        """
        return self.run(self.encoder(ids)[tokens], lengths, state)

    def run(self, vectors: Tensor, lengths: Tensor, state: LstmState | None = None) -> tuple[list[Tensor], LstmState]:
        """The same from the tokens' vectors (B, T, E)."""
        mirror = mirrored_steps(lengths, vectors.shape[1])
        inputs = torch.stack(
            [self._read(vectors, mirror, direction) for direction in self.config.directions]
        ).transpose(1, 2)
        outputs, state = self.run_stacks(inputs, lengths, state)
        halves = [
            [
                self._read(outputs[d, k].transpose(0, 1), mirror, direction)
                for d, direction in enumerate(self.config.directions)
            ]
            for k in range(self.config.layers)
        ]
        running = torch.arange(vectors.shape[1], device=vectors.device) < lengths[:, None]
        words = torch.where(running[:, :, None], vectors, 0.0)
        return [torch.cat([words] * len(halves[0]), dim=2), *[torch.cat(half, dim=2) for half in halves]], state

    def run_stacks(self, inputs: Tensor, lengths: Tensor, state: LstmState | None) -> tuple[Tensor, LstmState]:
        """(D, T, B, E) in reading order -> (D, L, T, B, P), and the state."""
        config = self.config
        return lstmp(
            inputs,
            self.stack_weights(),
            state or self.zero_state(inputs.shape[2]),
            lengths,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
            skip_connections=config.skip_connections,
        )

    def stack_weights(self) -> list[list[LayerWeights]]:
        """The layers of each direction as `lstmp` takes them."""
        return [[self._layer(layer) for layer in stack] for stack in self.stacks]  # pyright: ignore[reportGeneralTypeIssues]

    def zero_state(self, rows: int) -> LstmState:
        sizes = (len(self.config.directions), self.config.layers, rows)
        like = self.stacks[0][0].bias  # pyright: ignore[reportIndexIssue]
        return LstmState(like.new_zeros(*sizes, self.config.projection), like.new_zeros(*sizes, self.config.cells))

    def _layer(self, layer: LstmLayer) -> LayerWeights:
        cells = self.config.cells
        forget = torch.zeros_like(layer.bias)
        forget[cells : 2 * cells] = self.config.forget_bias
        return LayerWeights(layer.weight_ih, layer.weight_hh, layer.bias + forget, layer.weight_hr)

    @staticmethod
    def _read(rows: Tensor, mirror: Tensor, direction: str) -> Tensor:
        return rows if direction == FORWARD else rows.gather(1, mirror[:, :, None].expand(-1, -1, rows.shape[2]))


def mirrored_steps(lengths: Tensor, steps: int) -> Tensor:
    """(B, T): step t of a row swapped with length - 1 - t; steps past the end stay. It undoes itself."""
    step = torch.arange(steps, device=lengths.device)
    return torch.where(step < lengths[:, None], lengths[:, None] - 1 - step, step)


class _Parameters(Mapping[str, Array]):
    """Parameters as float32 arrays, copied when asked for."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters

    def __getitem__(self, name: str) -> Array:
        return self._parameters[name].detach().to("cpu", torch.float32).numpy().copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)
