"""A function of one tensor as a CUDA graph: its many small launches become one, which is what a single short sentence waits for."""

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_GRAPHS = 128  # each holds a few megabytes of the device's memory


class Replay:
    """Graphs of `function`, one for each key, captured when first needed; the least used go first."""

    def __init__(self, function: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._function = function
        self._device = device
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._lock = Lock()  # a graph has one place for its input and one for its output

    def __call__(self, array: NDArray) -> NDArray:
        """The function of an array, which comes back as an array of its own."""
        key = (array.shape, array.dtype.str)
        with self._lock, torch.cuda.device(self._device):
            graph = self._graphs.get(key)
            if graph is None:
                graph = self._graphs[key] = _Graph(self._function, array, self._device)
                if len(self._graphs) > MOST_GRAPHS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(key)
            return graph(array)


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    """A capture is broken off where Python's collector finds an old graph, or pinned memory, to give back."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Graph:
    def __init__(self, function: Callable[[Tensor], Tensor], array: NDArray, device: torch.device) -> None:
        self._sent = torch.from_numpy(np.ascontiguousarray(array)).pin_memory()
        self._input = self._sent.to(device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # what is compiled, allocated or tuned at the first call is not captured
            output = function(self._input)
        self._received = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may go on allocating meanwhile.
        with nothing_collected(), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._input.copy_(self._sent, non_blocking=True)
            self._received.copy_(function(self._input), non_blocking=True)

    def __call__(self, array: NDArray) -> NDArray:
        self._sent.numpy()[...] = array
        self._graph.replay()
        torch.cuda.current_stream().synchronize()
        return self._received.numpy().copy()
