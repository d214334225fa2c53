"""LSTM stacks that compute the same thing in different ways: `lstmp` by each of its paths, torch.nn.LSTM, and a plain loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elmofire.errors import InputError
from elmofire.kernels import LayerWeights, LstmState, lstmp, pack_weights
from elmofire.kernels.paths import PRECISIONS, why_not

CLIP = 3.0  # of cells and of projections, as published


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a batch and of the stacks that run it, both directions."""

    batch: int
    steps: int = 20
    cells: int = 4096
    projection: int = 512
    layers: int = 2
    directions: int = 2

    @property
    def tokens(self) -> int:
        """Positions of the batch, each read in both directions."""
        return self.batch * self.steps

    def flops(self, *, training: bool) -> int:
        """Floating-point operations of the products for one token; the backward pass has twice the forward's.

        >>> Shape(batch=1).flops(training=False)
        150994944
        """
        products = 8 * self.cells * self.projection + self.cells * self.projection
        return 2 * self.directions * self.layers * products * (3 if training else 1)


def there(projection: Tensor | None) -> Tensor:
    """All stacks here have one."""
    assert projection is not None
    return projection


class Problem(NamedTuple):
    """What a stack is given, and the gradient that comes back to its outputs (D, L, T, B, P)."""

    inputs: Tensor  # (D, T, B, P)
    weights: list[list[LayerWeights]]
    state: LstmState
    gradient: Tensor

    def to(self, dtype: torch.dtype) -> "Problem":
        """The same numbers in another type, as leaves of their own."""

        def cast(tensor: Tensor) -> Tensor:
            return tensor.detach().to(dtype, copy=True).requires_grad_()

        def layer(of: LayerWeights) -> LayerWeights:
            return LayerWeights(cast(of.weight_ih), cast(of.weight_hh), cast(of.bias), cast(there(of.weight_hr)))

        weights = [[layer(of) for of in stack] for stack in self.weights]
        state = LstmState(cast(self.state.hidden), cast(self.state.memory))
        return Problem(cast(self.inputs), weights, state, self.gradient.to(dtype))

    def leaves(self) -> dict[str, Tensor]:
        """Everything that gets a gradient, by name."""
        found = {"inputs": self.inputs, "hidden": self.state.hidden, "memory": self.state.memory}
        for d, stack in enumerate(self.weights):
            for k, layer in enumerate(stack):
                found |= {f"{d}.{k}.{name}": tensor for name, tensor in layer._asdict().items()}
        return found


def random_problem(shape: Shape, device: str, *, seed: int = 0) -> Problem:
    """Numbers lively enough that each clip holds some values in a thousand, as in trained models; the state is not zero."""
    generator = torch.Generator(device).manual_seed(seed)
    C, P, D, L = shape.cells, shape.projection, shape.directions, shape.layers

    def normal(*sizes: int, deviation: float = 1.0) -> Tensor:
        return (torch.randn(*sizes, generator=generator, device=device) * deviation).requires_grad_()

    def layer() -> LayerWeights:
        gates = (2 * P) ** -0.5
        bias = normal(4 * C, deviation=0.1).detach()
        bias[C : 2 * C] += 1.0  # the forget gate's constant
        return LayerWeights(
            normal(4 * C, P, deviation=gates),
            normal(4 * C, P, deviation=gates),
            bias.requires_grad_(),
            normal(P, C, deviation=3 * C**-0.5),
        )

    return Problem(
        normal(D, shape.steps, shape.batch, P),
        [[layer() for _ in range(L)] for _ in range(D)],
        LstmState(normal(D, L, shape.batch, P, deviation=0.5), normal(D, L, shape.batch, C, deviation=1.5)),
        normal(D, L, shape.steps, shape.batch, P).detach(),
    )


class Stack(NamedTuple):
    """A way to run a problem. It prepares once, and what it returns is then called again and again."""

    name: str
    prepare: Callable[[Problem, str], "Runner"]  # the precision is the second argument
    clips: bool = True  # False: neither clips nor residual, and the top layer's outputs only


class Runner(NamedTuple):
    """A problem made ready: `forward` gives its outputs and the state after it, `leaves` are what gets gradients."""

    forward: Callable[[], tuple[Tensor, LstmState]]
    leaves: dict[str, Tensor]
    gradient: Tensor


def by_path(path: str) -> Stack:
    """`kernels.lstmp` by one of its paths."""

    def prepare(problem: Problem, precision: str) -> Runner:
        if reason := why_not(path, problem.inputs.device, PRECISIONS[precision]):
            raise InputError(reason)

        # Who only infers has packed the weights before; in training they change with every step.
        with torch.no_grad():
            packed = problem.weights if path == "torch" else pack_weights(problem.weights, precision)

        def forward() -> tuple[Tensor, LstmState]:
            weights = problem.weights if torch.is_grad_enabled() else packed
            options = {"cell_clip": CLIP, "projection_clip": CLIP, "path": path, "precision": precision}
            return lstmp(problem.inputs, weights, problem.state, **options)

        return Runner(forward, problem.leaves(), problem.gradient)

    return Stack(f"lstmp, {path}", prepare)


def _prepare_loop(problem: Problem, precision: str) -> Runner:
    device = problem.inputs.device.type

    def forward() -> tuple[Tensor, LstmState]:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            return loop(problem)

    return Runner(forward, problem.leaves(), problem.gradient)


def loop(problem: Problem, *, clips: bool = True) -> tuple[Tensor, LstmState]:
    """Step by step, as the formulas stand: the definition, and what a plain program costs. Without `clips` as torch.nn.LSTM."""
    outputs, hidden, memory = [], [], []
    for d, stack in enumerate(problem.weights):
        steps = list(problem.inputs[d].unbind(0))
        for k, layer in enumerate(stack):
            h, c = problem.state.hidden[d, k], problem.state.memory[d, k]
            results = []
            for x in steps:
                gates = F.linear(x, layer.weight_ih) + F.linear(h, layer.weight_hh) + layer.bias
                i, f, g, o = gates.chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                c = c.clamp(-CLIP, CLIP) if clips else c
                h = F.linear(o.sigmoid() * c.tanh(), there(layer.weight_hr))
                h = h.clamp(-CLIP, CLIP) if clips else h
                results.append(h + x if clips and k > 0 else h)
            steps = results
            outputs.append(torch.stack(results))
            hidden.append(h)
            memory.append(c)
    shape = (len(problem.weights), len(problem.weights[0]))
    hidden, memory = (torch.stack(part).unflatten(0, shape) for part in (hidden, memory))
    return torch.stack(outputs).unflatten(0, shape), LstmState(hidden, memory)


def _prepare_torch_lstm(problem: Problem, precision: str) -> Runner:
    """One torch.nn.LSTM for each direction, everything stored in the precision: cuDNN's own kernels where there is cuDNN."""
    problem = problem.to(getattr(torch, precision))
    L, P = problem.state.hidden.shape[1], problem.state.hidden.shape[3]
    modules = []
    leaves = {name: problem.leaves()[name] for name in ("inputs", "hidden", "memory")}
    for d, stack in enumerate(problem.weights):
        module = torch.nn.LSTM(P, problem.state.memory.shape[3], L, proj_size=P).to(problem.inputs)
        for k, layer in enumerate(stack):
            parts = {"weight_ih": layer.weight_ih, "weight_hh": layer.weight_hh, "weight_hr": layer.weight_hr}
            for name, value in {**parts, "bias_ih": layer.bias, "bias_hh": torch.zeros_like(layer.bias)}.items():
                parameter = getattr(module, f"{name}_l{k}")
                parameter.data.copy_(there(value))
                leaves[f"{d}.{k}.{'bias' if name == 'bias_ih' else name}"] = parameter
        module.flatten_parameters()
        modules.append(module)

    def forward() -> tuple[Tensor, LstmState]:
        tops, states = [], []
        for d, module in enumerate(modules):
            top, state = module(problem.inputs[d], (problem.state.hidden[d], problem.state.memory[d]))
            tops.append(top)
            states.append(state)
        return torch.stack(tops)[:, None], LstmState(*map(torch.stack, zip(*states, strict=True)))

    return Runner(forward, leaves, problem.gradient[:, -1:])


@contextmanager
def float32_in_full() -> Iterator[None]:
    """cuDNN's LSTM multiplies float32 in TF32 unless it is told not to, for either pass."""
    library = torch.backends.cudnn
    where, name, exact = (library.rnn, "fp32_precision", "ieee") if hasattr(library, "rnn") else (library, "allow_tf32", False)  # fmt: skip
    before = getattr(where, name)
    setattr(where, name, exact)
    try:
        yield
    finally:
        setattr(where, name, before)


LOOP = Stack("eager loop", _prepare_loop)
TORCH_LSTM = Stack("torch.nn.LSTM (cannot clip)", _prepare_torch_lstm, clips=False)


def loop_in(problem: Problem, dtype: torch.dtype, *, clips: bool) -> Runner:
    """The loop with everything stored in one type; in float64 it is what every stack is held against."""
    stored = problem.to(dtype)

    def forward() -> tuple[Tensor, LstmState]:
        outputs, state = loop(stored, clips=clips)
        return (outputs if clips else outputs[:, -1:]), state

    return Runner(forward, stored.leaves(), stored.gradient if clips else stored.gradient[:, -1:])
