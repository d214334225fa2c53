"""How fast the LSTM stacks run: every path of `kernels.lstmp` beside torch.nn.LSTM and the plain loop, in training and inference.

A training step is forward, backward and all gradients (inputs, state, weights, bias, projection), with the state in and out and
both clips on. Weights, inputs and state are float32, and what a precision needs of them is made within the step; in inference the
weights were packed before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmofire.bench.cuda import captured, sustained
from elmofire.bench.stacks import (
    LOOP,
    TORCH_LSTM,
    Problem,
    Runner,
    Shape,
    Stack,
    by_path,
    float32_in_full,
    loop_in,
    random_problem,
)
from elmofire.bench.timing import Spread, alternated, spread
from elmofire.errors import ElmofireError, InputError
from elmofire.kernels.paths import PATHS, PRECISIONS

Record = dict[str, Any]
Say = Callable[[str], None]
MODES = ("train", "inference")
# Relative errors that no one is refused for; above them it is twice those of the plain loop in the same precision.
FLOORS = {"float32": 1e-5, "bfloat16": 2e-2}
_CEILING = 10  # times the floor: what no one may be off by
_CHECKED_ROWS = 8  # over all steps; then all rows of what is timed, over a few steps: tiles depend on the rows
_CHECKED_STEPS = 3
_PAUSE = 0.3  # seconds of rest before each burst
_PRODUCT = {"cuda": 8192, "cpu": 1024}  # rows and columns of the product that rates are compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How to measure. On a GPU `seconds` is how long a sustained rate is taken over; a CPU has bursts only."""

    device: str = "cpu"
    precision: str = "float32"
    mode: str = "train"
    seconds: float = 2.0
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, value, known in (("precision", self.precision, tuple(PRECISIONS)), ("mode", self.mode, MODES)):
            if value not in known:
                raise InputError(f"the {name} is {value!r}, but should be {' or '.join(known)}")
        if self.repeats < 5:
            raise InputError(f"{self.repeats} repeats are too few to see the spread", hint="at least 5")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            problem = str(error).splitlines()[0][:90]
            raise InputError(f"the device {self.device!r} cannot be used: {problem}") from None

    @property
    def training(self) -> bool:
        return self.mode == "train"

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def device_name(self) -> str:
        if self.on_gpu:
            return torch.cuda.get_device_name(torch.device(self.device))
        return f"cpu, {torch.get_num_threads()} threads"

    def bursts(self, calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Seconds of each call, after a rest on a GPU, whose clock is higher then."""
        if self.on_gpu:
            return alternated(calls, self.repeats, pause=_PAUSE, wait=torch.cuda.synchronize)
        return alternated(calls, self.repeats)


class Entry(NamedTuple):
    """Something to time: a stack, run directly or as a captured graph."""

    stack: Stack
    graph: bool
    call: Callable[[], object]


def stacks() -> list[Stack]:
    """Everyone who takes part; who cannot run on a device says so there."""
    return [*map(by_path, PATHS), TORCH_LSTM, LOOP]


def bench_lstmp(
    shapes: Sequence[Shape],
    setting: Setting,
    *,
    contenders: Sequence[Stack] | None = None,
    say: Say = lambda line: None,
) -> Iterator[Record]:
    """Check every stack, also with each batch, time those that pass, and yield a record for each of them, as they come."""
    common = {"mode": setting.mode, "device": setting.device_name, "precision": setting.precision}
    common["torch"] = torch.__version__
    fit = list(stacks() if contenders is None else contenders)
    few_rows = replace(shapes[0], batch=min(_CHECKED_ROWS, shapes[0].batch))
    few_steps = [replace(shape, steps=min(_CHECKED_STEPS, shape.steps)) for shape in shapes]
    for shape in (few_rows, *[shape for shape in few_steps if shape.batch > _CHECKED_ROWS]):
        checked = list(_checked(fit, random_problem(shape, setting.device), setting, say))
        fit = [stack for stack, record in checked if not (record["refused"] or record["unavailable"])]
        yield from ({"case": "parity", **common, **asdict(shape), **record} for _, record in checked)
    product = _product(setting)
    yield {"case": "product", **common, **product}
    for shape in shapes:
        problem = random_problem(shape, setting.device)
        entries = [entry for stack in fit for entry in _entries(stack, problem, setting, say)]
        say(f"bursts at batch {shape.batch}")
        bursts = setting.bursts({f"{entry.stack.name}, {entry.graph}": entry.call for entry in entries})
        loops = bursts.get(f"{LOOP.name}, False")
        with_graph = {entry.stack.name for entry in entries if entry.graph}  # a rate that holds is then the graph's
        for entry, burst in zip(entries, bursts.values(), strict=True):
            record: Record = {"case": "time", **common, **asdict(shape)}
            record |= {"contender": entry.stack.name, "graph": entry.graph, "clips": entry.stack.clips}
            record["burst"] = _rates(burst, shape, setting, product["burst"])
            if setting.on_gpu and (entry.graph or entry.stack.name not in with_graph):
                say(f"{entry.stack.name} at batch {shape.batch}, sustained")
                held = sustained(entry.call, setting.seconds, spread(burst)["median"])
                record["sustained"] = _rates(held, shape, setting, product["sustained"])
            if loops:
                record["over_loop"] = spread([x / y for x, y in zip(loops, burst, strict=True)])
            yield record
        del entries, problem
        if setting.on_gpu:
            torch.cuda.empty_cache()


def _step(runner: Runner, *, training: bool) -> Callable[[], dict[str, Tensor]]:
    """One step from the inputs to everything that is asked of it."""
    names, leaves = list(runner.leaves), list(runner.leaves.values())

    def train() -> dict[str, Tensor]:
        with float32_in_full():
            outputs, state = runner.forward()
            gradients = torch.autograd.grad(outputs, leaves, runner.gradient.to(outputs.dtype))
        results = {"outputs": outputs, "hidden after": state.hidden, "memory after": state.memory}
        return results | {f"gradient of {name}": gradient for name, gradient in zip(names, gradients, strict=True)}

    def infer() -> dict[str, Tensor]:
        with torch.no_grad(), float32_in_full():
            outputs, state = runner.forward()
        return {"outputs": outputs, "hidden after": state.hidden, "memory after": state.memory}

    return train if training else infer


def _checked(
    contenders: Sequence[Stack], problem: Problem, setting: Setting, say: Say
) -> Iterator[tuple[Stack, Record]]:
    """Each stack with its errors against float64, and why it is refused or cannot run."""
    true = {clips: _results(loop_in(problem, torch.float64, clips=clips), setting) for clips in (True, False)}
    # Of those without clips everything is stored in the precision, so that a loop that does the same is their measure.
    plain = {True: LOOP.prepare(problem, setting.precision)}
    plain[False] = loop_in(problem, PRECISIONS[setting.precision], clips=False)
    allowed = {clips: _allowed(_errors(_results(plain[clips], setting), true[clips]), setting) for clips in plain}
    for stack in contenders:
        say(f"parity of {stack.name}")
        record: Record = {"contender": stack.name, "errors": {}, "refused": None, "unavailable": None}
        try:
            found = _results(stack.prepare(problem, setting.precision), setting)
        except (ElmofireError, RuntimeError, NotImplementedError, ImportError) as error:
            yield stack, {**record, "unavailable": str(error).splitlines()[0][:160]}
            continue
        errors = _errors(found, true[stack.clips])
        yield stack, {**record, "errors": errors, "refused": _refusal(errors, allowed[stack.clips], setting)}


def _results(runner: Runner, setting: Setting) -> dict[str, Tensor]:
    return _step(runner, training=setting.training)()


def _errors(found: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    return {name: _error(found[name], expected) for name, expected in true.items()}


def _allowed(plain: dict[str, float], setting: Setting) -> dict[str, float]:
    """Twice the plain loop's errors, within reason."""
    floor = FLOORS[setting.precision]
    return {name: min(max(2 * error, floor), _CEILING * floor) for name, error in plain.items()}


def _refusal(errors: dict[str, float], allowed: dict[str, float], setting: Setting) -> str | None:
    for name, error in errors.items():
        if not error <= allowed[name]:  # NaN is refused too
            return f"{name}: off by {error:.1e} ({allowed[name]:.1e} is allowed in {setting.precision})"
    return None


def _error(found: Tensor, true: Tensor) -> float:
    found, true = found.detach().double(), true.detach()
    return float((found - true).norm() / true.norm())


def _entries(stack: Stack, problem: Problem, setting: Setting, say: Say) -> Iterator[Entry]:
    """The stack run directly and, on a GPU, as a graph that was seen to compute the same."""
    step = _step(stack.prepare(problem, setting.precision), training=setting.training)
    expected = step()
    yield Entry(stack, graph=False, call=step)
    if not setting.on_gpu:
        return
    try:
        replay, written = captured(lambda: list(step().values()))
    except RuntimeError as error:
        say(f"{stack.name}: no graph: {str(error).splitlines()[0][:100]}")
        torch.cuda.synchronize()
        return
    replay()
    torch.cuda.synchronize()
    for (name, tensor), result in zip(expected.items(), written, strict=True):
        if not (off := _error(result, tensor.double())) <= FLOORS[setting.precision]:
            say(f"{stack.name}: refused as a graph: {name} differs by {off:.1e} from the same step outside of it")
            return
    yield Entry(stack, graph=True, call=replay)


def _rates(seconds: Sequence[float], shape: Shape, setting: Setting, product: Spread) -> Record:
    taken = spread(seconds)
    rate = shape.tokens / taken["median"]
    teraflops = rate * shape.flops(training=setting.training) / 1e12
    shown = {"seconds": taken, "tokens_per_second": rate, "teraflops": teraflops}
    return {**shown, "share_of_product": teraflops / product["median"]}


def _product(setting: Setting) -> Record:
    """Teraflops of one square product, the same way: bursts, and on a GPU sustained (in bfloat16, whatever is compared)."""
    size = _PRODUCT["cuda" if setting.on_gpu else "cpu"]
    dtype = torch.bfloat16 if setting.on_gpu else getattr(torch, setting.precision)
    a, b = (torch.randn(size, size, device=setting.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def call() -> None:
        torch.matmul(a, b, out=out)

    call()
    bursts = setting.bursts({"product": call})["product"]
    found: Record = {"size": size, "dtype": str(dtype).removeprefix("torch.")}
    found["burst"] = spread([2 * size**3 / taken / 1e12 for taken in bursts])
    if setting.on_gpu:
        held = sustained(call, setting.seconds, spread(bursts)["median"])
        found["sustained"] = spread([2 * size**3 / taken / 1e12 for taken in held])
    return found
