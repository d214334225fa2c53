"""Which kernels serve a call on Hopper: those written for it where its sizes fit them."""

import torch

from elmofire.kernels.lstmp_gpu import cells, hopper_gates, hopper_gradients
from elmofire.kernels.lstmp_gpu.sizes import Sizes
from elmofire.kernels.lstmp_gpu.waves import Kernels


def kernels(s: Sizes) -> Kernels:
    if s.dtype != torch.bfloat16:
        raise ValueError("the kernels for Hopper multiply in bfloat16")
    fits = s.P_ <= hopper_gradients.MOST_PROJECTION
    gates_backward = hopper_gradients.plan_gates_backward if fits else cells.plan_gates_backward
    return Kernels(hopper_gates.plan_gates, gates_backward, hopper=True)
