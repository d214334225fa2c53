"""Work on a GPU: its batches sent ahead, and as CUDA graphs from the second time on."""

from collections.abc import Callable

import torch
from torch import Tensor

from elmofire.model.replay import nothing_collected
from elmofire.train.step.forward import Tensors
from elmofire.train.step.staging import Shape, Staging
from elmofire.train.stream.batch import Batch, Update


class OnGpu:
    """What was done once under a key is captured when it comes again, and replayed from then on.

    All graphs share their memory, since one runs after the other and what they leave for later lies outside of it. Everything runs on
    the stream that is current when this is made, which must not be the default one: that cannot be captured.
    """

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._staging = Staging(device)
        self._graphs: dict[object, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if graphs else None

    @property
    def captures(self) -> bool:
        return self._pool is not None

    @property
    def rate(self) -> Tensor:
        """Of the update whose batch came last."""
        return self._staging.rate

    def run(
        self,
        batch: Batch,
        update: Update,
        shape: Shape,
        way: object,
        gradients: Callable[[Tensors, Tensor], None],
        seed: int,
        *,
        rate: float,
        captured: bool,
    ) -> None:
        """Send a batch, with the rate of its update, and do with it what `gradients` does; `way` is what else tells one graph from another."""
        if not self._staging.fits(shape):
            self._graphs.clear()  # they read the place that is left now
            self._staging.reserve(2 * shape.numbers)
        self._staging.send(batch, update, shape, rate)
        torch.cuda.manual_seed(seed)

        def take() -> None:
            gradients(*self._staging.take(shape))

        if captured:
            self.do((shape, way), take, seed)
        else:
            take()
        self._staging.taken()

    def do(self, key: object, work: Callable[[], None], seed: int | None = None) -> None:
        """Do it, on the current stream."""
        if self._pool is None or key not in self._graphs:
            work()
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = torch.cuda.CUDAGraph()
            with nothing_collected(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
            if seed is not None:
                torch.cuda.manual_seed(seed)
        graph.replay()
