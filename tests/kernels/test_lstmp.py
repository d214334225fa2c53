"""`lstmp` against the definition's single step: outputs, states and gradients, with ragged rows, resets and clips that fire."""

import numpy as np
import pytest
import torch
from triton_device import triton_device

from elmofire.engine import definition
from elmofire.errors import InputError
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.kernels import LayerWeights, LstmState, lstmp

SIZES = [(1, 1, 1, 1, 1, 1, 1), (2, 2, 7, 3, 5, 4, 11), (1, 3, 4, 2, 6, 6, 6), (2, 1, 5, 4, 3, 2, 9)]


def problem(D, L, T, B, E, P, C, *, projected=True, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    P = P if projected else C
    weights = [
        [
            LayerWeights(
                draw(4 * C, E if k == 0 else P), draw(4 * C, P), draw(4 * C), 2 * draw(P, C) if projected else None
            )
            for k in range(L)
        ]
        for _ in range(D)
    ]
    state = LstmState(draw(D, L, B, P), draw(D, L, B, C))
    lengths = torch.randint(0, T + 1, (B,), generator=generator).to(device)
    resets = torch.rand(D, T, B, generator=generator).to(device) < 0.3
    return 2 * draw(D, T, B, E), weights, state, lengths, resets


def slow(inputs, weights, state, lengths, *, cell_clip, projection_clip, skip_connections, resets):
    """The definition's step, row by row."""
    D, T, B, _ = inputs.shape
    L, P, C = len(weights[0]), state.hidden.shape[-1], state.memory.shape[-1]
    outputs = np.zeros((D, L, T, B, P))
    hidden, memory = state.hidden.numpy().copy(), state.memory.numpy().copy()
    for d in range(D):
        for b in range(B):
            xs = inputs[d, : lengths[b], b].numpy()
            for k, layer in enumerate(weights[d]):
                arrays = {f"l.{name}": value.numpy() for name, value in layer._asdict().items() if value is not None}
                config = BilmConfig(
                    encoder=EncoderConfig(filters=(), words=1, word_dim=512, projection=False),
                    cells=C,
                    projection=P,
                    lstm_projection=layer.weight_hr is not None,
                    cell_clip=cell_clip,
                    projection_clip=projection_clip,
                    forget_bias=0.0,
                )
                h, c = hidden[d, k, b], memory[d, k, b]
                ys = []
                for t, x in enumerate(xs):
                    if resets is not None and resets[d, t, b]:
                        h, c = np.zeros_like(h), np.zeros_like(c)
                    h, c = definition.lstm_step(config, arrays, "l", x, h, c)
                    ys.append(h + x if skip_connections and k > 0 else h)
                hidden[d, k, b], memory[d, k, b] = h, c
                outputs[d, k, : len(ys), b] = np.array(ys).reshape(-1, P)
                xs = ys
    return outputs, hidden, memory


@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("clips", [(None, None), (0.4, 0.6)])
@pytest.mark.parametrize("skip_connections", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_outputs_and_state_equal_the_definition(sizes, skip_connections, clips, projected, with_resets):
    inputs, weights, state, lengths, resets = problem(*sizes, projected=projected)
    options = {
        "cell_clip": clips[0],
        "projection_clip": clips[1],
        "skip_connections": skip_connections,
        "resets": resets if with_resets else None,
    }
    outputs, after = lstmp(inputs, weights, state, lengths, **options)
    expected, hidden, memory = slow(inputs, weights, state, lengths, **options)
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(after.hidden.numpy(), hidden, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(after.memory.numpy(), memory, rtol=1e-12, atol=1e-12)


def test_without_lengths_every_row_runs_to_the_end():
    inputs, weights, state, _, _ = problem(2, 2, 5, 3, 4, 4, 6)
    full = torch.full((3,), 5)
    for found, expected in zip(lstmp(inputs, weights, state)[0], lstmp(inputs, weights, state, full)[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_padding_never_reaches_a_real_step():
    inputs, weights, state, lengths, _ = problem(2, 2, 6, 4, 5, 5, 7)
    clean, _ = lstmp(inputs, weights, state, lengths)
    for b, n in enumerate(lengths):
        inputs[:, n:, b] = float("nan")
    dirty, _ = lstmp(inputs, weights, state, lengths)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)


@pytest.mark.parametrize("projected", [True, False])
def test_gradients_equal_finite_differences(projected):
    inputs, weights, state, lengths, resets = problem(2, 2, 4, 3, 3, 2, 4, projected=projected)
    flat = [tensor for stack in weights for layer in stack for tensor in layer if tensor is not None]
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs, state.hidden, state.memory, *flat)]

    def run(inputs, hidden, memory, *flat):
        remaining = iter(flat)
        rebuilt = [
            [LayerWeights(*[None if t is None else next(remaining) for t in layer]) for layer in stack]
            for stack in weights
        ]
        # Clips that fire for some values and leave others alone: no gradient passes where they do.
        outputs, after = lstmp(
            inputs, rebuilt, LstmState(hidden, memory), lengths, cell_clip=1.1, projection_clip=1.3, resets=resets
        )
        return outputs, after.hidden, after.memory

    assert torch.autograd.gradcheck(run, leaves)


def test_dropout_falls_between_the_layers_and_on_the_residual():
    inputs, weights, state, _, _ = problem(1, 2, 3, 2, 4, 4, 6)
    torch.manual_seed(5)
    found, _ = lstmp(inputs, weights, state, dropout=0.5)
    torch.manual_seed(5)
    first, _ = lstmp(inputs, [weights[0][:1]], LstmState(state.hidden[:, :1], state.memory[:, :1]))
    again = torch.nn.functional.dropout(first[0, 0], 0.5)
    second, _ = lstmp(again[None], [weights[0][1:]], LstmState(state.hidden[:, 1:], state.memory[:, 1:]))
    torch.testing.assert_close(found[0, 0], first[0, 0])
    torch.testing.assert_close(found[0, 1], second[0, 0] + again)


MISFITS = {
    "an input of another width": {"inputs": lambda x: x[..., :4]},
    "a length too few": {"lengths": lambda x: x[:-1]},
    "resets of too few steps": {"resets": lambda x: x[:, :-1]},
    "a state of another batch": {"state": lambda x: LstmState(x.hidden[:, :, :-1], x.memory)},
    "a direction too few": {"weights": lambda x: x[:1]},
    "a layer too few in one direction": {"weights": lambda x: [x[0], x[1][:1]]},
    "no steps": {"inputs": lambda x: x[:, :0]},
    "a bias that is too short": {"weights": lambda x: [[layer._replace(bias=layer.bias[:-1]) for layer in s] for s in x]},
}  # fmt: skip


WRONG = {
    "a clip of nothing": {"cell_clip": lambda _: 0.0},
    "a clip below zero": {"projection_clip": lambda _: -1.0},
    "everything dropped": {"dropout": lambda _: 1.0},
    "resets that are numbers": {"resets": lambda x: x.to(torch.uint8)},
    "lengths that are no whole numbers": {"lengths": lambda x: x.double()},
    "weights in float16": {"weights": lambda x: [[LayerWeights(*(t.half() for t in layer)) for layer in s] for s in x]},
    "a layer without a projection": {"weights": lambda x: [[x[0][0]._replace(weight_hr=None), x[0][1]], x[1]]},
}


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_would_be_computed_wrongly_is_refused_on_every_path(path, wrong):
    device = triton_device() if path == "triton" else "cpu"
    names = ("inputs", "weights", "state", "lengths", "resets")
    given = dict(zip(names, problem(2, 2, 7, 3, 5, 4, 11, device=device), strict=True))
    with pytest.raises(InputError, match=r"should be|not (bool|int64|float32)|all have one|not in float64|one type"):
        lstmp(**given | {name: change(given.get(name)) for name, change in WRONG[wrong].items()}, path=path)


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_on_every_path(path, misfit):
    device = triton_device() if path == "triton" else "cpu"
    names = ("inputs", "weights", "state", "lengths", "resets")
    given = dict(zip(names, problem(2, 2, 7, 3, 5, 4, 11, device=device), strict=True))
    lstmp(**{**given, "path": "torch"})
    with pytest.raises(InputError, match=r"inputs|weights"):
        lstmp(**given | {name: change(given[name]) for name, change in MISFITS[misfit].items()}, path=path)


def test_all_misfits_are_told_at_once():
    inputs, weights, state, lengths, resets = problem(2, 2, 7, 3, 5, 4, 11)
    with pytest.raises(InputError) as told:
        lstmp(inputs, weights, state, lengths[:1], resets=resets[:, :2])
    assert "inputs (2, 7, 3, 5) do not fit: lengths (1,), not (3,); resets (2, 2, 3), not (2, 7, 3)" in str(told.value)


def test_packed_weights_are_refused_for_another_size():
    device = triton_device()
    from elmofire.kernels.lstmp_gpu import PackedWeights

    inputs, weights, state, *_ = problem(2, 2, 7, 3, 5, 4, 11)
    floats = [[LayerWeights(*(tensor.float().to(device) for tensor in layer)) for layer in stack] for stack in weights]
    packed = PackedWeights.of(floats, torch.float32)
    with pytest.raises(InputError, match=r"packed for \(2, 5, 4, 11\)"):
        lstmp(inputs[..., :3].float(), packed, state, path="triton")
