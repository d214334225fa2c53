"""Why gradients in bfloat16 are off by hundredths where many values clip: `python benchmarks/clipped_gradients.py` on a Hopper GPU.

The float64 reference is brought to the kernel step by step: its clips' masks, then its rounding of what products read. What is left after
the last step is the kernels' own.
"""

import sys

import torch
from records import keep

from elmofire.kernels.lstmp_gpu import hopper, waves
from elmofire.kernels.lstmp_gpu.buffers import Rows
from elmofire.kernels.lstmp_gpu.packing import pack
from elmofire.kernels.lstmp_gpu.sizes import Sizes

D, L, T, B, P, C = 2, 2, 4, 128, 512, 4096
STD, CLIP = 0.06, 3.0


class Rounded(torch.autograd.Function):
    """bfloat16 on the way forward, nothing on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Clipped(torch.autograd.Function):
    """A clip whose gradient passes where a given mask says."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x.clamp(-CLIP, CLIP)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def reference(inputs, layers, hidden, memory, *, clips, masks=None, rounded=False):
    """All cells in float64. `masks[cell][t]` are those of the memory and of the projection."""
    seen = Rounded.apply if rounded else (lambda x: x)
    outputs, hiddens, memories, counts = [], [], [], [0, 0]
    for d in range(D):
        x = inputs[d]
        for k in range(L):
            cell = k * D + d
            ih, hh, bias, hr = layers[cell]
            h, c, ys = hidden[d, k], memory[d, k], []
            x = seen(x)
            for t in range(T):
                i, f, g, o = (x[t] @ ih.T + seen(h) @ hh.T + bias).chunk(4, dim=1)
                a = f.sigmoid() * c + i.sigmoid() * g.tanh()
                inside = masks[cell][t][0] if masks else a.detach().abs() <= CLIP
                c = Clipped.apply(a, inside) if clips else a
                p = seen(o.sigmoid() * c.tanh()) @ hr.T
                kept = masks[cell][t][1] if masks else p.detach().abs() <= CLIP
                h = Clipped.apply(p, kept) if clips else p
                counts[0] += int((~inside).sum())
                counts[1] += int((~kept).sum())
                ys.append(h)
            y = torch.stack(ys)
            x = y + x if k else y
            outputs.append(x)
            hiddens.append(h)
            memories.append(c)
    return [torch.stack(outputs), torch.stack(hiddens), torch.stack(memories)], counts


def main() -> None:
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape, scale=1.0):
        drawn = scale * torch.randn(*shape, generator=generator, device=device, dtype=torch.float64)
        return drawn.bfloat16().double()

    layers = [
        (draw(4 * C, P, scale=STD), draw(4 * C, P, scale=STD), draw(4 * C, scale=STD), draw(P, C, scale=STD))
        for _ in range(D * L)
    ]
    inputs, hidden, memory = draw(D, T, B, P), draw(D, L, B, P), draw(D, L, B, C)
    wanted = [draw(D * L, T, B, P), draw(D * L, B, P), draw(D * L, B, C)]  # by direction, then layer

    def exact(**how):
        leaves = [t.clone().requires_grad_() for t in (inputs, hidden, memory, *[t for layer in layers for t in layer])]
        stacks = [tuple(leaves[3 + 4 * k : 7 + 4 * k]) for k in range(D * L)]
        found, counts = reference(leaves[0], stacks, leaves[1], leaves[2], **how)
        return [*[t.detach() for t in found], *torch.autograd.grad(found, leaves, wanted)], counts

    def kernel(clip):
        """The Hopper kernels, with the masks that the forward pass applied and those that the backward pass finds."""
        s = Sizes(
            D=D,
            L=L,
            T=T,
            B=B,
            E=P,
            P=P,
            C=C,
            row_tile=128,
            dtype=torch.bfloat16,
            cell_clip=clip,
            projection_clip=clip,
            skip=True,
        )
        floats = [tuple(t.float() for t in layer) for layer in layers]
        packed, empty = pack(s, floats), torch.empty(0, dtype=torch.int32, device=device)
        rows, kernels = Rows(empty, empty, empty), hopper.kernels(s)
        outputs, h, c, f = waves.forward(s, kernels, inputs, packed, hidden.float(), memory.float(), rows, save=True)
        forward, backward = {}, {}
        for cell in range(D * L) if clip else ():
            for t in range(T):
                wave = t + cell // D
                z = f.gates[cell, wave].unflatten(1, (-1, 4, 32)).float()
                i, forget, g = (z[:, :, gate].flatten(1) for gate in range(3))
                again = forget.sigmoid() * f.c[cell, wave] + i.sigmoid() * g.tanh()
                kept = f.inside[cell, wave] != 0
                forward.setdefault(cell, []).append((f.c[cell, wave + 1].abs() < CLIP, kept))
                backward.setdefault(cell, []).append((again.abs() <= CLIP, kept))
        by_layer = [w.float().unflatten(0, (D, L)) for w in wanted]
        d_inputs, dh, dc, d_layers = waves.backward(s, kernels, f, packed, rows, *by_layer, floats)
        flat = [t for layer in d_layers for t in layer]
        return [outputs.flatten(0, 1), h.flatten(0, 1), c.flatten(0, 1), d_inputs, dh, dc, *flat], forward, backward

    names = [
        "outputs",
        "hidden",
        "memory",
        "d inputs",
        "d hidden",
        "d memory",
        "d weight_ih",
        "d weight_hh",
        "d bias",
        "d weight_hr",
    ]

    def show(title, found, wished):
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wished, strict=True)]
        line = {name: float(f"{error:.2e}") for name, error in zip(names, errors, strict=False)}
        line["largest gradient"] = float(f"{max(errors[3:]):.2e}")
        print(
            f"{title:66s} outputs {line['outputs']:.1e}  hidden {line['hidden']:.1e}  d inputs {line['d inputs']:.1e}  largest gradient {line['largest gradient']:.1e}"
        )
        keep(
            "clipped_gradients",
            reference=title,
            std=STD,
            clip=CLIP,
            shape=[D, L, T, B, P, C],
            device=torch.cuda.get_device_name(),
            **line,
        )

    without, *_ = kernel(None)
    show("no clips; float64", without, exact(clips=False)[0])
    show("no clips; float64, operands rounded", without, exact(clips=False, rounded=True)[0])
    found, forward, backward = kernel(CLIP)
    flips = [
        sum(int((a[n] != b[n]).sum()) for cell in forward for a, b in zip(forward[cell], backward[cell], strict=True))
        for n in (0, 1)
    ]
    plain, counts = exact(clips=True)
    print(
        f"clipped values: {counts[0]} memories, {counts[1]} projections; masks that the backward pass finds differently: {flips[0]}"
    )
    show("clips; float64", found, plain)
    show("clips; float64, masks of the forward pass", found, exact(clips=True, masks=forward)[0])
    show("clips; float64, masks of the backward pass", found, exact(clips=True, masks=backward)[0])
    show("clips; float64, operands rounded", found, exact(clips=True, rounded=True)[0])
    show(
        "clips; float64, operands rounded, masks of the forward pass",
        found,
        exact(clips=True, masks=forward, rounded=True)[0],
    )
    show(
        "clips; float64, operands rounded, masks of the backward pass",
        found,
        exact(clips=True, masks=backward, rounded=True)[0],
    )


if __name__ == "__main__":
    sys.exit(main())
