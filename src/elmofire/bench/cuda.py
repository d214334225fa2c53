"""Timing on a GPU: work captured once as a graph, and rates that hold for seconds, when the card's power limit has its say."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_CHUNK_SECONDS = 0.1  # between the marks of a sustained run


def captured(step: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """The step as a CUDA graph: its replay, and the tensors that a replay writes.

    It runs on a side stream first, so that libraries choose their kernels and autograd makes its buffers outside of the capture.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = step()
    torch.cuda.synchronize()
    return graph.replay, written


def sustained(call: Callable[[], object], seconds: float, each: float) -> list[float]:
    """Seconds per call in each chunk of a run back to back for so long; `each` is about what one call takes.

    Nothing waits between chunks: events in the queue mark where they end.
    """
    chunk = max(1, math.ceil(_CHUNK_SECONDS / each))
    found: list[float] = []
    while sum(found) * chunk < seconds:
        chunks = max(1, math.ceil((seconds - sum(found) * chunk) / (chunk * each)))
        marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(chunks + 1)]
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(chunk):
                call()
            mark.record()
        torch.cuda.synchronize()
        found += [a.elapsed_time(b) / 1000 / chunk for a, b in itertools.pairwise(marks)]
    return found
