"""One process or many: those that `torchrun` starts find each other by the variables it sets."""

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from elmofire.errors import InputError
from elmofire.train.run.switches import current_gpu_put_back, variables_put_back

_TIMEOUT = datetime.timedelta(minutes=30)
_MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # what ranks need to find each other
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # by its new name and its old one


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Of all ranks' tensors, in place."""
        if self.world > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def all_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """All ranks' rows, one after the other."""
        if self.world == 1:
            return tensor
        pieces = [torch.empty_like(tensor) for _ in range(self.world)]
        torch.distributed.all_gather(pieces, tensor.contiguous())
        return torch.cat(pieces, dim=dim)

    def own_rows(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's, of what `all_rows` gave."""
        return tensor.chunk(self.world, dim=dim)[self.rank] if tensor.shape[dim] else tensor

    def agree(self, value: Any) -> Any:
        """What the first rank says."""
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each rank says, in their order."""
        if self.world == 1:
            return [value]
        said: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(said, value)
        return said

    def wait(self) -> None:
        """For all the others to come here."""
        if self.world > 1:
            torch.distributed.barrier()


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks of a run that `torchrun` has started, or this process alone."""
    world, local = _number_of("WORLD_SIZE", 1), _number_of("LOCAL_RANK", 0)
    if world > 1 and (missing := [name for name in _MEETING if name not in os.environ]):
        raise InputError(
            f"WORLD_SIZE is {world}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set",
            hint="start many processes by torchrun, which sets all of them; for one process leave WORLD_SIZE out",
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with variables_put_back(*_ALLOCATOR), current_gpu_put_back():
        if device.startswith("cuda"):
            _one_piece_of_memory()
        place = _place(device, local if world > 1 else None)
        if world == 1:
            with _own_stream(place):
                yield Ranks(0, 1, place)
            return
        backend = "nccl" if place.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, timeout=_TIMEOUT, **_meeting_place(world))
        try:
            yield Ranks(torch.distributed.get_rank(), world, place)
        finally:
            torch.distributed.destroy_process_group()


def _number_of(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        raise InputError(f"the variable {variable} is {os.environ[variable]!r}, but should be a number") from None


def _meeting_place(world: int) -> dict[str, Any]:
    """Where ranks on one machine find each other's addresses, if `torchrun` may have started them again; elsewhere, what torch chooses.

    Its own place keeps what the dead ones have written there, and a rank that comes early would try to reach them. Only on one machine
    is the number of starts the same for all ranks.
    """
    variables = os.environ
    if variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or variables.get("GROUP_WORLD_SIZE") != "1":
        return {}
    from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

    place = TCPStore(variables["MASTER_ADDR"], int(variables["MASTER_PORT"]), is_master=False, timeout=_TIMEOUT)
    store = PrefixStore(f"start-{variables['TORCHELASTIC_RESTART_COUNT']}", place)
    return {"store": store, "rank": int(variables["RANK"]), "world_size": world}


def _one_piece_of_memory() -> None:
    """Have the allocator grow one piece, not many: graphs of many shapes then fit into the memory of the largest.

    It listens until it is first used, and never after that.
    """
    for name in _ALLOCATOR:
        os.environ.setdefault(name, "expandable_segments:True")


@contextlib.contextmanager
def _own_stream(place: torch.device) -> Iterator[None]:
    """All of a run on one stream that can be captured, which the default one cannot."""
    if place.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(place)
    stream.wait_stream(torch.cuda.current_stream(place))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(place).wait_stream(stream)


def _place(device: str, local: int | None) -> torch.device:
    try:
        place = torch.device(device)
        if place.type not in ("cpu", "cuda"):
            raise RuntimeError("training is done on cpu or cuda")
        if place.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device here")
        if place.type == "cuda":
            place = torch.device("cuda", local if local is not None else place.index or 0)
            torch.cuda.set_device(place)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the device {device!r} cannot be used: {str(error).splitlines()[0][:90]}",
            hint="the device cpu always works",
        ) from None
    return place
