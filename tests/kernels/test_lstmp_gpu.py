"""`lstmp` by Triton and Gluon against float64: outputs, states and every gradient, no further off than plain PyTorch in the same precision.

Without a GPU the Triton path runs in Triton's interpreter, in float32, on a few small problems; on a GPU everything runs.
"""

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl

from elmofire.errors import InputError
from elmofire.kernels import LayerWeights, LstmState, lstmp, pack_weights
from elmofire.kernels.lstmp_gpu import PackedWeights, row_tile, waves
from elmofire.kernels.lstmp_gpu.cells import tanh
from elmofire.kernels.lstmp_gpu.projection import dropout_scale

CUDA = torch.cuda.is_available()
HOPPER = CUDA and torch.cuda.get_device_capability()[0] == 9
DEVICE = "cuda" if CUDA else "cpu"
gpu = pytest.mark.gpu
on_gpu = [gpu, pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")]
on_hopper = [gpu, pytest.mark.skipif(not HOPPER, reason="there is no Hopper GPU here")]

PATHS = [
    pytest.param("triton", "float32", id="triton-float32"),
    pytest.param("triton", "bfloat16", id="triton-bfloat16", marks=on_gpu),
    pytest.param("gluon", "bfloat16", id="gluon-bfloat16", marks=on_hopper),
]
# directions, layers, steps, rows, width of the input, width, cells
SMALL = [(2, 2, 4, 3, 5, 4, 11), (1, 3, 3, 5, 70, 33, 70), (2, 1, 1, 17, 3, 64, 64)]
LARGE = [
    (2, 2, 20, 33, 33, 33, 33),
    (2, 2, 1, 500, 500, 500, 500),
    (2, 2, 20, 33, 500, 500, 500),
    (2, 2, 5, 130, 128, 128, 1024),
    (2, 3, 3, 65, 256, 256, 2048),
    (2, 2, 3, 129, 512, 512, 4096),
    (1, 2, 4, 200, 100, 600, 700),
    (2, 2, 2, 1024, 512, 512, 1024),  # from so many rows on, and so wide, tiles of the projection are larger
    (1, 2, 3, 1100, 100, 128, 200),
]
SIZES = [*SMALL, *[pytest.param(size, marks=on_gpu) for size in LARGE]]
WAYS = {
    "plain": {},
    "clips": {"clips": True},
    "ragged": {"clips": True, "ragged": True},
    "resets": {"clips": True, "resets": True},
    "everything": {"clips": True, "ragged": True, "resets": True, "dropout": 0.3},
    "dropout": {"dropout": 0.3},
    "no skip": {"clips": True, "skip_connections": False, "dropout": 0.3},
}


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """What is read before it was written shows."""

    def poisoned(make):
        def made(*args, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor.fill_(77)

        return made

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


def problem(size, *, projected=True, seed=0):
    D, L, T, B, E, P, C = size
    P = P if projected else C
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0):
        # Rounded, so that bfloat16 starts from the same numbers as float64.
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().double().to(DEVICE)

    def layer(width):
        hr = draw(P, C, scale=1.5 / C**0.5) if projected else None
        return LayerWeights(draw(4 * C, width, scale=width**-0.5), draw(4 * C, P, scale=P**-0.5), draw(4 * C), hr)

    weights = [[layer(E if k == 0 else P) for k in range(L)] for _ in range(D)]
    state = LstmState(draw(D, L, B, P, scale=0.5), draw(D, L, B, C, scale=0.5))
    lengths = torch.randint(0, T + 1, (B,), generator=generator).to(DEVICE)
    resets = (torch.rand(D, T, B, generator=generator) < 0.3).to(DEVICE)
    return draw(D, T, B, E), weights, state, lengths, resets


def leaves_of(inputs, weights, state, dtype):
    tensors = [inputs, *state, *[t for stack in weights for layer in stack for t in layer if t is not None]]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def rebuilt(leaves, weights):
    remaining = iter(leaves)
    inputs, state = next(remaining), LstmState(next(remaining), next(remaining))
    stacks = [[LayerWeights(*[None if t is None else next(remaining) for t in layer]) for layer in s] for s in weights]
    return inputs, stacks, state


def results(run, given, dtype):
    """Outputs, states and all gradients of `run(inputs, weights, state)`."""
    inputs, weights, state, *_ = given
    leaves = leaves_of(inputs, weights, state, dtype)
    outputs, after = run(*rebuilt(leaves, weights))
    found = [outputs, *after]
    generator = torch.Generator().manual_seed(7)
    wanted = [torch.randn(tensor.shape, generator=generator).to(DEVICE, tensor.dtype) for tensor in found]
    gradients = torch.autograd.grad(found, leaves, wanted)
    return [*[tensor.detach() for tensor in found], *gradients]


def options_of(way, given):
    _, _, _, lengths, resets = given
    clip = 0.6 if way.get("clips") else None
    return {
        "lengths": lengths if way.get("ragged") else None,
        "resets": resets if way.get("resets") else None,
        "cell_clip": clip,
        "projection_clip": clip,
        "skip_connections": way.get("skip_connections", True),
    }


class Clip(torch.autograd.Function):
    """A clip whose gradient passes where a mask says."""

    @staticmethod
    def forward(ctx, x, clip, inside):
        ctx.save_for_backward(inside)
        return x.clamp(-clip, clip)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None, None


def loop(dropped, sides=None, *, lengths, resets, cell_clip, projection_clip, skip_connections, dtype):
    """Step by step, with given dropout masks; `sides[cell, t]` say where the clips let gradients of memory and projection pass."""

    def clipped(x, clip, inside):
        if clip is None:
            return x
        return x.clamp(-clip, clip) if inside is None else Clip.apply(x, clip, inside)

    def run(inputs, weights, state):
        D, T, B, _ = inputs.shape
        outputs, hidden, memory = [], [], []
        half = torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16)
        for d, stack in enumerate(weights):
            x = inputs[d]
            for k, layer in enumerate(stack):
                x = x * (dropped[k][d] if dropped[k].dim() else dropped[k]).to(x.dtype)
                h, c, steps = state.hidden[d, k], state.memory[d, k], []
                for t in range(T):
                    running = (
                        torch.ones(B, 1, dtype=torch.bool, device=DEVICE) if lengths is None else (t < lengths)[:, None]
                    )
                    if resets is not None:
                        cut = resets[d, t][:, None] & running
                        h, c = torch.where(cut, 0.0, h), torch.where(cut, 0.0, c)
                    side = (None, None) if sides is None else sides[k * D + d, t]
                    with half:
                        i, f, g, o = (
                            F.linear(x[t], layer.weight_ih, layer.bias).add(F.linear(h, layer.weight_hh)).chunk(4, 1)
                        )
                        after = clipped(f.sigmoid() * c + i.sigmoid() * g.tanh(), cell_clip, side[0])
                        p = F.linear(o.sigmoid() * after.tanh(), layer.weight_hr)
                    out = clipped(p, projection_clip, side[1])
                    h, c = torch.where(running, out.to(h.dtype), h), torch.where(running, after.to(c.dtype), c)
                    y = out + x[t] if skip_connections and k > 0 else out
                    steps.append(torch.where(running, y, 0.0))
                x = torch.stack(steps)
                outputs.append(x)
                hidden.append(h)
                memory.append(c)
        shape = (D, len(weights[0]))
        return torch.stack(outputs).unflatten(0, shape), LstmState(
            *(torch.stack(s).unflatten(0, shape) for s in (hidden, memory))
        )

    return run


@triton.jit
def scales(masks, seed, L: tl.constexpr, T, B, P: tl.constexpr, DROPOUT: tl.constexpr):
    place = tl.program_id(0)
    t, layer, direction = place % T, (place // T) % L, place // (T * L)
    rows, columns = tl.program_id(1) * 16 + tl.arange(0, 16), tl.program_id(2) * 64 + tl.arange(0, 64)
    scale = dropout_scale(tl.load(seed), direction, layer, t, rows, columns, L, T, B, P, DROPOUT)
    tl.store(masks + (place.to(tl.int64) * B + rows[:, None]) * P + columns[None, :], scale)


def masks_of(size, dropout, path):
    """What a call draws that comes next, found by drawing it and turning the generator back."""
    D, L, T, B, _, P, _ = size
    if not dropout:
        return [torch.ones((), device=DEVICE)] * L
    if path == "torch":  # a mask for each layer of one direction, then of the next
        drawn = [[F.dropout(torch.ones(T, B, P, device=DEVICE), dropout) for _ in range(1, L)] for _ in range(D)]
        torch.manual_seed(1)
        return [torch.ones((), device=DEVICE), *[torch.stack(masks) for masks in zip(*drawn, strict=True)]]
    tile = 128 if path == "gluon" else row_tile(B)
    B_, P_ = -(-B // tile) * tile, -(-P // 64) * 64
    state = torch.cuda.get_rng_state() if CUDA else torch.get_rng_state()
    seed = torch.randint(2**31, (1,), device=DEVICE)
    (torch.cuda.set_rng_state if CUDA else torch.set_rng_state)(state)
    drawn = torch.empty(D, L, T, B_, P_, device=DEVICE)
    scales[(D * L * T, B_ // 16, P_ // 64)](drawn, seed, L=L, T=T, B=B_, P=P_, DROPOUT=dropout)
    return [torch.ones((), device=DEVICE), *[drawn[:, k, :, :B, :P] for k in range(1, L)]]


@triton.jit
def unclipped(memory, i, f, g, before):
    """As the backward pass computes it again: what lies next to the clip must fall on the same side."""
    at = tl.program_id(0) * 512 + tl.arange(0, 512)
    kept = tl.sigmoid(tl.load(f + at)) * tl.load(before + at)
    tl.store(memory + at, kept + tl.sigmoid(tl.load(i + at)) * tanh(tl.load(g + at)))


def relative(found, exact):
    assert not found.isnan().any()
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))


@pytest.fixture
def sides(monkeypatch):
    """Where the clips of the last call let gradients pass, as the backward pass will find it: {(cell, step): (memory, projection)}.

    A value at the clip to within rounding may end on either side of it, and takes a whole gradient with it. So float64 is told the sides.
    """
    found = {}
    forward = waves.forward

    def watched(s, *args, **kwargs):
        *results, f = forward(s, *args, **kwargs)
        for cell in range(s.cells):
            for t in range(s.T):
                wave = t + cell // s.D
                z = f.gates[cell, wave].unflatten(1, (-1, 4, 32)).float()
                i, forget, g = (z[:, :, gate].flatten(1) for gate in range(3))
                before = f.c[cell, wave]
                if s.resets:
                    before = torch.where(args[-1].resets[cell % s.D, t][:, None] != 0, 0.0, before)
                memory = torch.empty_like(before)
                assert before.numel() % 512 == 0
                unclipped[(before.numel() // 512,)](memory, i, forget, g, before.contiguous())
                memory = memory.abs() <= (s.cell_clip or math.inf)
                projection = (
                    f.inside[cell, wave] != 0 if s.projection_clip else torch.ones(s.B_, s.P_, dtype=torch.bool)
                )
                found[cell, t] = (memory[: s.B, : s.C], projection[: s.B, : s.P].to(memory.device))
        return *results, f

    monkeypatch.setattr(waves, "forward", watched)
    return found


@pytest.mark.parametrize(("path", "precision"), PATHS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_further_from_float64_than_twice_plain_pytorch(size, way, path, precision, sides):
    given = problem(size)
    options, dropout = options_of(WAYS[way], given), WAYS[way].get("dropout", 0.0)
    torch.manual_seed(1)
    dropped = masks_of(size, dropout, path)
    found = results(
        lambda x, w, s: lstmp(x, w, s, **options, dropout=dropout, path=path, precision=precision), given, torch.float32
    )
    exact = results(loop(dropped, sides, **options, dtype=torch.float64), given, torch.float64)
    plain = results(loop(dropped, **options, dtype=getattr(torch, precision)), given, torch.float32)
    its_exact = results(loop(dropped, **options, dtype=torch.float64), given, torch.float64)
    # What plain PyTorch happens to hit almost exactly sets no measure.
    least = 4e-7 if precision == "float32" else 2e-3
    errors = [(relative(a, b), relative(c, d)) for a, b, c, d in zip(found, exact, plain, its_exact, strict=True)]
    assert all(ours <= 2 * theirs + least for ours, theirs in errors), [f"{a:.1e} {b:.1e}" for a, b in errors]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("size", "way"),
    [
        *[(size, way) for size in SMALL for way in WAYS],
        *[(size, "everything") for size in ((2, 2, 20, 33, 33, 33, 33), (1, 1, 20, 3, 33, 500, 500))],
    ],
    ids=str,
)
def test_the_path_of_torch_alone_is_no_further_off_either(size, way, precision):
    given = problem(size)
    options, dropout = options_of(WAYS[way], given), WAYS[way].get("dropout", 0.0)
    torch.manual_seed(1)
    dropped = masks_of(size, dropout, "torch")
    found = results(
        lambda x, w, s: lstmp(x, w, s, **options, dropout=dropout, path="torch", precision=precision),
        given,
        torch.float32,
    )
    exact = results(loop(dropped, **options, dtype=torch.float64), given, torch.float64)
    plain = results(loop(dropped, **options, dtype=getattr(torch, precision)), given, torch.float32)
    assert {tensor.dtype for tensor in found} == {torch.float32}
    least = 4e-7 if precision == "float32" else 2e-3
    errors = [(relative(a, b), relative(c, b)) for a, b, c in zip(found, exact, plain, strict=True)]
    if precision == "bfloat16" and WAYS[way].get("clips"):
        errors = errors[
            :3
        ]  # a value next to the clip takes a whole gradient with it, and here nobody knows on which side it fell
    assert all(ours <= 2 * theirs + least for ours, theirs in errors), [f"{a:.1e} {b:.1e}" for a, b in errors]


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_what_drops_is_the_right_share_and_nothing_that_repeats(dropout):
    """No two steps, layers, directions, rows, columns or seeds have anything to do with each other."""
    D, L, T, B, P = 2, 3, 4, 64, 128
    drawn = []
    for seed in (1, 2):
        masks = torch.empty(D, L, T, B, P, device=DEVICE)
        scales[(D * L * T, B // 16, P // 64)](
            masks, torch.tensor([seed], device=DEVICE), L=L, T=T, B=B, P=P, DROPOUT=dropout
        )
        kept = masks != 0
        assert torch.all(masks[kept] == masks.max())
        assert float(masks.max()) == pytest.approx(1 / (1 - dropout), rel=1e-6)
        share, spread = 1 - kept.double().mean().item(), (dropout * (1 - dropout) / masks.numel()) ** 0.5
        assert abs(share - dropout) < 5 * spread
        drawn.append(kept.double() - (1 - dropout))
    one, other = drawn
    pairs = {
        "directions": (one[0], one[1]),
        "layers": (one[:, :-1], one[:, 1:]),
        "steps": (one[:, :, :-1], one[:, :, 1:]),
        "rows": (one[..., :-1, :], one[..., 1:, :]),
        "columns": (one[..., :-1], one[..., 1:]),
        "seeds": (one, other),
    }
    for name, (a, b) in pairs.items():
        correlation = float((a * b).mean() / (dropout * (1 - dropout)))
        assert abs(correlation) < 5 / a.numel() ** 0.5, name


@pytest.mark.parametrize(("path", "precision"), PATHS)
def test_an_lstm_without_projection(path, precision):
    given = problem((2, 2, 3, 5, 9, 0, 40), projected=False)
    found = results(lambda x, w, s: lstmp(x, w, s, path=path, precision=precision), given, torch.float32)
    exact = results(lambda x, w, s: lstmp(x, w, s, path="torch"), given, torch.float64)
    bound = 2e-6 if precision == "float32" else 2e-2
    assert all(relative(a, b) < bound for a, b in zip(found, exact, strict=True))


@pytest.mark.parametrize(("path", "precision"), PATHS)
@pytest.mark.parametrize("rows", [1, 16, pytest.param(40, marks=on_gpu), pytest.param(200, marks=on_gpu)])
def test_packed_weights_give_the_same_without_keeping_anything(rows, path, precision):
    given = problem((2, 2, 6, rows, 12, 20, 30))
    inputs, weights, state, lengths, _ = given
    inputs, weights, state = rebuilt([t.detach() for t in leaves_of(inputs, weights, state, torch.float32)], weights)
    options = {"cell_clip": 0.5, "projection_clip": 0.5, "path": path}
    expected, expected_state = lstmp(inputs, weights, state, lengths, **options, precision=precision)
    # Where there is no GPU, `pack_weights` leaves them as they are.
    packed = pack_weights(weights, precision) if CUDA else PackedWeights.of(weights, torch.float32)
    found, found_state = lstmp(inputs, packed, state, lengths, **options)
    # One sentence runs in one launch, a batch in many: the same to rounding.
    bound = 1e-6 if precision == "float32" else 5e-3
    for a, b in zip((found, *found_state), (expected, *expected_state), strict=True):
        assert relative(a, b) <= bound


FEW = [(2, 2, 6, 1, 12, 20, 30), (1, 3, 3, 1, 70, 33, 70), (2, 1, 1, 1, 3, 64, 64), (2, 2, 4, 2, 12, 20, 30)]
MANY_STEPS = [(2, 2, 25, 1, 512, 512, 4096), (2, 3, 40, 1, 128, 128, 1024), (1, 2, 20, 1, 33, 500, 500)]
MANY_STEPS += [(2, 2, 25, 16, 512, 512, 4096), (2, 2, 20, 7, 33, 33, 33)]


@pytest.mark.parametrize(("path", "precision"), PATHS[:2])
@pytest.mark.parametrize("way", ["plain", "clips", "ragged", "resets", "no skip"])
@pytest.mark.parametrize("size", [*FEW, *[pytest.param(size, marks=on_gpu) for size in MANY_STEPS]], ids=str)
def test_a_sentence_alone_or_a_few(size, way, path, precision):
    """Which one launch is made for, or one a layer."""
    given = problem(size)
    inputs, weights, state, *_ = given
    options = options_of(WAYS[way], given)
    ones = masks_of(size, 0.0, path)

    def found_by(run, dtype):
        with torch.no_grad():
            outputs, after = run(
                *rebuilt([leaf.detach() for leaf in leaves_of(inputs, weights, state, dtype)], weights)
            )
        return [outputs, *after]

    ours = found_by(lambda x, w, s: lstmp(x, w, s, **options, path=path, precision=precision), torch.float32)
    exact = found_by(loop(ones, **options, dtype=torch.float64), torch.float64)
    plain = found_by(loop(ones, **options, dtype=getattr(torch, precision)), torch.float32)
    least = 4e-7 if precision == "float32" else 2e-3
    errors = [(relative(a, b), relative(c, b)) for a, b, c in zip(ours, exact, plain, strict=True)]
    assert all(of_ours <= 2 * theirs + least for of_ours, theirs in errors), errors


# Nothing is kept: a wave's memories take the place of those before.
LONG = [
    (2, 2, 20, 256, 128, 128, 1024),
    (2, 2, 3, 1024, 512, 512, 4096),
    (2, 3, 5, 300, 100, 256, 256),
    (2, 1, 1, 385, 128, 128, 64),
    (2, 2, 2, 5000, 200, 512, 128),
    (1, 2, 3, 512, 128, 128, 256),
]


@pytest.mark.parametrize("way", ["plain", "ragged", "resets", "no skip"])
@pytest.mark.parametrize("size", [pytest.param(size, marks=on_hopper) for size in LONG], ids=str)
def test_a_long_batch_without_keeping_anything(size, way):
    given = problem(size)
    options = options_of({**WAYS[way], "dropout": 0.0}, given)
    # In float64 several times as many rows as are compared would take minutes.
    rows = torch.linspace(0, size[3] - 1, min(size[3], 600)).round().long().to(DEVICE)
    few = {name: None if options[name] is None else options[name][..., rows] for name in ("lengths", "resets")}
    inputs, weights, state, *_ = given
    fewer = LstmState(*(part[:, :, rows] for part in state))

    def found_by(run, dtype, inputs, state):
        typed = [[LayerWeights(*[part.to(dtype) for part in layer]) for layer in stack] for stack in weights]
        with torch.no_grad():
            outputs, after = run(inputs.to(dtype), typed, LstmState(*(part.to(dtype) for part in state)))
        return [outputs, *after]

    ours = found_by(
        lambda x, w, s: lstmp(x, w, s, **options, path="gluon", precision="bfloat16"), torch.float32, inputs, state
    )
    ours = [ours[0][:, :, :, rows], ours[1][:, :, rows], ours[2][:, :, rows]]
    ones = [torch.ones((), device=DEVICE)] * size[1]
    of_few = {**options, **few}
    exact = found_by(loop(ones, **of_few, dtype=torch.float64), torch.float64, inputs[:, :, rows], fewer)
    plain = found_by(loop(ones, **of_few, dtype=torch.bfloat16), torch.float32, inputs[:, :, rows], fewer)
    errors = [(relative(a, c), relative(b, c)) for a, b, c in zip(ours, plain, exact, strict=True)]
    assert all(ours <= 2 * theirs + 2e-3 for ours, theirs in errors), [f"{a:.1e} {b:.1e}" for a, b in errors]


def test_a_second_backward_pass_is_refused():
    given = problem((1, 1, 2, 2, 3, 3, 4))
    leaves = leaves_of(*given[:3], torch.float32)
    inputs, weights, state = rebuilt(leaves, given[1])
    outputs, _ = lstmp(inputs, weights, state, path="triton")
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        outputs.sum().backward()


def test_what_is_asked_for_by_name_is_never_replaced():
    inputs, weights, state, *_ = problem((1, 1, 2, 2, 3, 3, 4))
    with pytest.raises(InputError, match="float64"):
        lstmp(inputs, weights, state, path="triton")
    with pytest.raises(InputError, match="bfloat16"):
        lstmp(inputs, weights, state, path="gluon", precision="float32")
    with pytest.raises(InputError, match="should be"):
        lstmp(inputs, weights, state, path="cudnn")
    with pytest.raises(InputError, match="should be"):
        lstmp(inputs, weights, state, precision="float16")


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")
@pytest.mark.parametrize(("path", "precision"), PATHS)
def test_a_captured_graph_gives_the_same_bits(path, precision):
    given = problem((2, 2, 5, 130, 64, 64, 128))
    leaves = leaves_of(*given[:3], torch.float32)
    wanted = torch.randn(2, 2, 5, 130, 64, device=DEVICE)

    def step():
        inputs, weights, state = rebuilt(leaves, given[1])
        outputs, _ = lstmp(inputs, weights, state, cell_clip=0.5, projection_clip=0.5, path=path, precision=precision)
        gradients = torch.autograd.grad(outputs, leaves, wanted, materialize_grads=True)
        return [outputs.detach(), *gradients]  # nothing of the first pass is alive in the second, on another stream

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(captured, expected, strict=True):
            assert torch.equal(a, b)
