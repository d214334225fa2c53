"""The plain path of `lstmp`: torch operations alone, any device, gradients by autograd."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from elmofire.kernels import LayerWeights, LstmState


def run(
    inputs: Tensor,
    weights: Sequence[Sequence[LayerWeights]],
    state: LstmState,
    lengths: Tensor | None,
    *,
    cell_clip: float | None,
    projection_clip: float | None,
    skip_connections: bool,
    dropout: float,
    resets: Tensor | None,
) -> tuple[Tensor, LstmState]:
    running = (
        None if lengths is None else torch.arange(inputs.shape[1], device=inputs.device)[:, None] < lengths
    )  # (T, B)
    if resets is not None and running is not None:
        resets = resets & running  # past its end a row keeps its state
    outputs: list[Tensor] = []
    hidden: list[Tensor] = []
    memory: list[Tensor] = []
    for d, stack in enumerate(weights):
        x = inputs[d]
        for k, layer in enumerate(stack):
            x = F.dropout(x, dropout) if dropout and k > 0 else x
            y, h, c = _layer(
                x,
                layer,
                state.hidden[d, k],
                state.memory[d, k],
                running,
                None if resets is None else resets[d],
                cell_clip,
                projection_clip,
            )
            x = y + x if skip_connections and k > 0 else y
            if running is not None:
                x = torch.where(running[:, :, None], x, 0.0)
            outputs.append(x)
            hidden.append(h)
            memory.append(c)
    shape = (len(weights), len(weights[0]))
    return (
        torch.stack(outputs).unflatten(0, shape),
        LstmState(torch.stack(hidden).unflatten(0, shape), torch.stack(memory).unflatten(0, shape)),
    )


def _layer(
    x: Tensor,
    layer: LayerWeights,
    h: Tensor,
    c: Tensor,
    running: Tensor | None,
    resets: Tensor | None,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer (T, B, E) -> its h at every step (T, B, P), and the last state."""
    wide = torch.promote_types(
        torch.promote_types(x.dtype, c.dtype), torch.float32
    )  # of states and outputs, whatever the products are made of
    h, c = h.to(wide), c.to(wide)
    gates_in = F.linear(x, layer.weight_ih, layer.bias)  # (T, B, 4C), all steps at once
    steps: list[Tensor] = []
    for t, gates_t in enumerate(gates_in.unbind(0)):
        if resets is not None:
            h, c = h.masked_fill(resets[t, :, None], 0.0), c.masked_fill(resets[t, :, None], 0.0)
        i, f, g, o = torch.addmm(gates_t, h, layer.weight_hh.T).chunk(4, dim=1)
        c_t = f.sigmoid() * c + i.sigmoid() * g.tanh()
        if cell_clip is not None:
            c_t = c_t.clamp(-cell_clip, cell_clip)
        h_t = o.sigmoid() * c_t.tanh()
        if layer.weight_hr is not None:
            h_t = (h_t @ layer.weight_hr.T).to(wide)
            if projection_clip is not None:
                h_t = h_t.clamp(-projection_clip, projection_clip)
        if running is not None:
            here = running[t, :, None]
            h_t, c_t = torch.where(here, h_t, h), torch.where(here, c_t, c)
        h, c = h_t, c_t
        steps.append(h)
    return torch.stack(steps), h, c
