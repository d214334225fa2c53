"""Why gradients in bfloat16 are off by hundredths where many values clip: `python benchmarks/clipped_gradients.py` on a Hopper GPU.

The float64 reference is brought to the kernels step by step: the masks of their clips, their rounding of what products read, the
hardware's tanh, and the gates that the way back reads rounded. What is left after the last step are the gradients' own roundings.
"""

import sys

import torch
import triton
import triton.language as tl
from records import keep

from elmofire.kernels.lstmp_gpu import hopper, waves
from elmofire.kernels.lstmp_gpu.buffers import Rows
from elmofire.kernels.lstmp_gpu.packing import pack
from elmofire.kernels.lstmp_gpu.sizes import Sizes

D, L, T, B, P, C = 2, 2, 4, 128, 512, 4096
STD, CLIP = 0.06, 3.0


@triton.jit
def approximate(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(
        y + at, tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [value], tl.float32, True, 1), mask=at < n
    )


def hardware_tanh(x):
    """The GPU's own tanh, as the kernels use it."""
    single = x.float().contiguous()
    y = torch.empty_like(single)
    approximate[(triton.cdiv(y.numel(), 1024),)](single, y, y.numel(), BLOCK=1024)
    return y.double()


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


class Cell(torch.autograd.Function):
    """Gates and memory -> memory and what the output gate lets out. The way back starts from gates rounded to bfloat16, if so told."""

    @staticmethod
    def forward(ctx, z, before, mask, tanh, rounded, clips):
        ctx.save_for_backward(z, before, mask)
        ctx.how = tanh, rounded, clips
        _, _, _, _, _, after, squashed, o = Cell.values(z, before, tanh, clips)
        return after, o * squashed

    @staticmethod
    def values(z, before, tanh, clips):
        i, f, g, o = z.chunk(4, dim=1)
        i, f, g, o = 0.5 * tanh(0.5 * i) + 0.5, 0.5 * tanh(0.5 * f) + 0.5, tanh(g), 0.5 * tanh(0.5 * o) + 0.5
        unclipped = f * before + i * g
        after = unclipped.clamp(-CLIP, CLIP) if clips else unclipped
        return i, f, g, before, unclipped, after, tanh(after), o

    @staticmethod
    def backward(ctx, d_after, d_out):
        z, before, mask = ctx.saved_tensors
        tanh, rounded, clips = ctx.how
        i, f, g, before, _, _, squashed, o = Cell.values(z.bfloat16().double() if rounded else z, before, tanh, clips)
        da = d_after + d_out * o * (1 - squashed * squashed)
        da = da * mask if clips else da
        dz = [da * g * i * (1 - i), da * before * f * (1 - f), da * i * (1 - g * g), d_out * squashed * o * (1 - o)]
        return torch.cat(dz, dim=1), da * f, None, None, None, None


def reference(inputs, layers, hidden, memory, *, clips, masks=None, operands=False, tanh=False, gates=False):
    """All cells in float64, with what is named done as the kernels do it. `masks[cell][t]` are those of memory and projection."""
    seen = Rounded.apply if operands else (lambda x: x)
    squash = hardware_tanh if tanh else torch.tanh
    outputs, hiddens, memories, counts = [], [], [], [0, 0]
    for d in range(D):
        x = inputs[d]
        for k in range(L):
            cell = k * D + d
            ih, hh, bias, hr = layers[cell]
            h, c, ys = hidden[d, k], memory[d, k], []
            x = seen(x)
            for t in range(T):
                z = x[t] @ ih.T + seen(h) @ hh.T + bias
                unclipped = Cell.values(z.detach(), c.detach(), squash, clips)[4]
                inside = masks[cell][t][0] if masks else unclipped.abs() <= CLIP
                c, out = Cell.apply(z, c, inside, squash, gates, clips)
                p = seen(out) @ hr.T
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
        """The Hopper kernels, and the masks of their clips."""
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
        masks = {
            cell: [(f.c[cell, t + cell // D + 1].abs() < CLIP, f.inside[cell, t + cell // D] != 0) for t in range(T)]
            for cell in (range(D * L) if clip else ())
        }
        by_layer = [w.float().unflatten(0, (D, L)) for w in wanted]
        d_inputs, dh, dc, d_layers = waves.backward(s, kernels, f, packed, rows, *by_layer, floats)
        flat = [t for layer in d_layers for t in layer]
        return [outputs.flatten(0, 1), h.flatten(0, 1), c.flatten(0, 1), d_inputs, dh, dc, *flat], masks

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

    def show(regime, title, found, wished):
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wished, strict=True)]
        line = {name: float(f"{error:.2e}") for name, error in zip(names, errors, strict=False)}
        line["largest gradient"] = float(f"{max(errors[3:]):.2e}")
        print(
            f"{regime:9s} {title:52s} outputs {line['outputs']:.1e}  hidden {line['hidden']:.1e}  d inputs {line['d inputs']:.1e}  largest gradient {line['largest gradient']:.1e}"
        )
        keep(
            "clipped_gradients",
            regime=regime,
            reference=title,
            std=STD,
            clip=CLIP,
            shape=[D, L, T, B, P, C],
            device=torch.cuda.get_device_name(),
            **line,
        )

    steps = [
        ("float64", {}),
        ("its masks", {"masks": True}),
        ("its masks, operands rounded", {"masks": True, "operands": True}),
        ("its masks, operands rounded, the hardware's tanh", {"masks": True, "operands": True, "tanh": True}),
        ("all that, gates rounded for the way back", {"masks": True, "operands": True, "tanh": True, "gates": True}),
        ("its masks, gates rounded for the way back", {"masks": True, "gates": True}),
    ]
    for clip in (None, CLIP):
        found, masks = kernel(clip)
        for title, how in steps:
            if clip is None and title == "its masks":
                continue
            given = how | {"masks": masks if clip and how.get("masks") else None, "clips": clip is not None}
            wished, counts = exact(**given)
            show("clips" if clip else "no clips", title, found, wished)
        # No kernel at all: what rounding alone makes of float64.
        same = {"masks": masks if clip else None, "clips": clip is not None}
        rounded = exact(**same, operands=True, tanh=True, gates=True)[0]
        show("clips" if clip else "no clips", "float64 with all that, in the kernels' place", rounded, exact(**same)[0])
        print(f"{counts[0]} memories and {counts[1]} projections clipped" if clip else "")


if __name__ == "__main__":
    sys.exit(main())
