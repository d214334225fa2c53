"""Launches whose programs wait for each other: right in whatever order the programs run between two waits.

Triton's interpreter runs one program after the other to its end. Here each has a thread; they take turns from wait to wait, in an order
drawn anew each time. What waits itself, and that all programs are on the GPU at once, is left to tests on one.
"""

import inspect
import random
import threading
from functools import update_wrapper
from types import SimpleNamespace

import pytest
import torch
from triton_device import CUDA

pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl
from triton.runtime import interpreter

from elmofire.kernels import LayerWeights, LstmState, lstmp
from elmofire.kernels.lstmp_gpu import one_row, sentence

pytestmark = pytest.mark.skipif(CUDA, reason="Triton's interpreter runs where there is no GPU")
FOUND = 60  # seconds after which a program that never comes back counts as stuck


class Turns:
    """A kernel's function: it begins when the launch reaches its last program, and then runs all of them."""

    def __init__(self, function, order):
        self.function, self.order = function, order
        update_wrapper(self, function)
        self.__globals__, self.__signature__ = function.__globals__, inspect.signature(function)
        self.mine, self.back, self.waits = threading.local(), threading.Semaphore(0), 0

    def __call__(self, **arguments):
        here, all_of_them = (getattr(interpreter.interpreter_builder, name)[0] for name in ("grid_idx", "grid_dim"))
        if here + 1 < all_of_them:
            return
        turns, failures, waiting = [threading.Semaphore(0) for _ in range(all_of_them)], [], set(range(all_of_them))
        self.ended = set()

        def run(program):
            self.mine.turn = turns[program]
            turns[program].acquire()
            try:
                self.function(**arguments)
            except BaseException as error:
                failures.append(error)
            self.ended.add(program)
            self.back.release()

        for program in waiting:
            threading.Thread(target=run, args=(program,), daemon=True).start()
        while waiting:
            for program in self.order.sample(sorted(waiting), len(waiting)):
                interpreter.interpreter_builder.set_grid_idx(program, 0, 0)
                turns[program].release()
                assert self.back.acquire(timeout=FOUND), f"program {program} does not come back"
                if failures:
                    raise failures[0]
            self.waits += 1
            waiting -= self.ended
            assert not self.ended or not waiting, "some programs ended where others wait"

    def wait_for_all(self, _arrivals, target):
        """That of the kernels counts arrivals up to a target: as many as have arrived when all have."""
        programs = interpreter.interpreter_builder.grid_dim[0]
        assert int(target.handle.data.item()) == programs * (self.waits + 1)
        self.back.release()
        self.mine.turn.acquire()


@pytest.fixture
def in_turns(monkeypatch):
    """Kernels launched with so many programs, in an order drawn from a seed; returns what was launched."""

    def started(programs, seed):
        launched, order, make = [], random.Random(seed), interpreter.GridExecutor

        def executor(function, names, grid, *hooks):
            if "arrivals" not in names:
                return make(function, names, grid, *hooks)
            launched.append(Turns(function, order))
            return make(launched[-1], names, (programs,), *hooks)

        monkeypatch.setattr(interpreter, "GridExecutor", executor)
        for module in (one_row, sentence):
            monkeypatch.setattr(module, "wait_for_all", lambda *given: launched[-1].wait_for_all(*given))
        return launched

    return started


@pytest.mark.parametrize("programs", [2, 5])
@pytest.mark.parametrize("of_rows", ["lengths", "resets"])
@pytest.mark.parametrize("rows", [1, 3])
def test_right_in_any_order(rows, of_rows, programs, in_turns, monkeypatch):
    # A loop's variable is a plain number in the interpreter.
    monkeypatch.setattr(tl.constexpr, "__rmod__", lambda self, other: other % self.value, raising=False)
    monkeypatch.setattr(sentence, "serves", lambda s, device: s.B > 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=1))
    launched = in_turns(programs, seed=rows)
    D, L, T, P, C = 2, 2, 3, 33, 70
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    def layer():
        return LayerWeights(draw(4 * C, P, scale=0.1), draw(4 * C, P, scale=0.1), draw(4 * C), draw(P, C, scale=0.1))

    inputs, weights = draw(D, T, rows, P), [[layer() for _ in range(L)] for _ in range(D)]
    state = LstmState(draw(D, L, rows, P), draw(D, L, rows, C))
    lengths = torch.randint(1, T, (rows,), generator=generator) if of_rows == "lengths" else None
    resets = torch.rand(D, T, rows, generator=generator) < 0.3 if of_rows == "resets" else None

    def found_by(path, dtype):
        cast = [[LayerWeights(*[array.to(dtype) for array in layer]) for layer in stack] for stack in weights]  # pyright: ignore[reportOptionalMemberAccess]
        start = LstmState(state.hidden.to(dtype), state.memory.to(dtype))
        outputs, after = lstmp(
            inputs.to(dtype), cast, start, lengths, resets=resets, cell_clip=0.6, projection_clip=0.6, path=path
        )
        return [outputs, *after]

    found, expected = found_by("triton", torch.float32), found_by("torch", torch.float64)
    # Two waits a step of a layer, or a wave; and the end.
    assert [turns.waits for turns in launched] == (L * [2 * T + 1] if rows == 1 else [2 * (T + L - 1) + 1])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=2e-6)
