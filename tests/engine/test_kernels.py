"""The compiled kernels, on every instruction set this machine has, against float64. Memory nobody wrote to is NaN."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire.engine.compiled import Matrix, PackedLayer, Tables, kernels_for, library
from elmofire.engine.compiled.packing import tables

SETS = library.available()
KINDS = ["float32", "int16", "int8"]
EMPTY = np.empty
LEVELS = {
    "avx512_vnni": 255,
    "portable": 255,
}  # of a row's numbers in int8; 127 without an instruction that sums in 32 bits

pytestmark = [
    pytest.mark.skipif(not SETS, reason="no compiled kernels on this machine"),
    pytest.mark.parametrize("instruction_set", SETS),
]


@pytest.fixture(autouse=True, scope="module")
def poisoned_memory():
    def poisoned(shape, dtype=np.float64, **others):
        array = EMPTY(shape, dtype, **others)
        array.view(np.uint8).fill(0xFF)  # NaN as a float, -1 as an integer
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty", poisoned)
        yield


def drawn(rng, *shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def packed(kernels, kind, weight, bias=None, parts=1):
    columns = -(-len(weight) // parts // (kernels.panel // parts)) * kernels.panel if parts > 1 else len(weight)
    return Matrix(kernels, kind, weight.shape[1], columns, kernels.pack(weight, kind, parts=parts, bias=bias))


def rounding(kind, x, w, levels):
    """How far x w may be off (rows, columns): half a step of every weight and of every number, and float32's own rounding."""
    x, w = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
    own = 1e-6 * (x @ w.T) + 1e-7
    if kind == "float32":
        return own
    weight_step = w.max(axis=1) / {"int16": 2047, "int8": 127}[kind]
    step = x.max(axis=1) / 2047 if kind == "int16" else 2 * x.max(axis=1) / levels
    return (
        own + x.sum(axis=1)[:, None] * weight_step / 2 + step[:, None] / 2 * (w.sum(axis=1) + w.shape[1] * weight_step)
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 20),
    depth=st.integers(1, 70) | st.sampled_from([255, 256, 257, 511, 513, 1100]),
    columns=st.integers(1, 140),
    has_bias=st.booleans(),
    clip=st.sampled_from([float("inf"), 0.5]),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_float64_short_of_rounding(
    instruction_set, kind, rows, depth, columns, has_bias, clip, seed
):
    kernels, rng = kernels_for(instruction_set), np.random.default_rng(seed)
    x, w = drawn(rng, rows, depth), drawn(rng, columns, depth)
    bias = drawn(rng, columns) if has_bias else None
    product = x.astype(np.float64) @ w.T.astype(np.float64) + (0 if bias is None else bias)
    found = packed(kernels, kind, w, bias).product(x, clip=clip)()
    assert found.shape == (rows, columns)
    # The bias's own rounding when it is added counts too: it may be much larger than the product.
    bound = rounding(kind, x, w, LEVELS.get(instruction_set, 127)) + (0 if bias is None else 2e-7 * np.abs(bias))
    assert (np.abs(found - np.clip(product, -clip, clip)) <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sums_longer_than_a_kernel_takes_at_once_do_not_overflow(instruction_set, kind):
    kernels = kernels_for(instruction_set)
    x, w = np.full((2, 40000), 3.0, np.float32), np.full((3, 40000), -2.0, np.float32)
    x[1] *= -1
    x[:, 0] = 0  # so that int8 has a range
    found = packed(kernels, kind, w).product(x)()
    np.testing.assert_allclose(found, x.astype(np.float64) @ w.T, rtol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-38, 2.5])
def test_rows_and_columns_of_one_value_multiply_to_what_they_should(instruction_set, kind, value):
    kernels = kernels_for(instruction_set)
    x, w = np.full((3, 9), value, np.float32), np.full((5, 9), 0.5, np.float32)
    np.testing.assert_allclose(packed(kernels, kind, w).product(x)(), x @ w.T, rtol=1e-5, atol=1e-30)
    w[2] = 0
    np.testing.assert_allclose(packed(kernels, kind, w).product(x)(), x @ w.T, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_multiplied_alike_whatever_rows_are_beside_it(instruction_set, kind):
    kernels, rng = kernels_for(instruction_set), np.random.default_rng(0)
    x, w = drawn(rng, 29, 300), drawn(rng, 70, 300)
    matrix = packed(kernels, kind, w)
    together = matrix.product(x)()
    for n in (1, 2, 3, 5, 7, 12):
        np.testing.assert_array_equal(matrix.product(x[:n])(), together[:n])


@pytest.mark.parametrize("tanh", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    banks=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 80)), min_size=1, max_size=4),
    columns=st.integers(6, 12),
    words=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_tables_give_the_largest_response_over_all_positions(instruction_set, tanh, banks, columns, words, seed):
    kernels, rng = kernels_for(instruction_set), np.random.default_rng(seed)
    characters, filters = drawn(rng, 11, 5), [drawn(rng, count, 5, width) for width, count in banks]
    bias = drawn(rng, sum(count for _, count in banks))
    lengths = rng.integers(0, columns + 1, words)
    ids = np.where(np.arange(columns) < lengths[:, None], rng.integers(0, 10, (words, columns)), 10).astype(np.int32)
    known = Tables(11, *np.array(banks, dtype=np.int64).T.copy(), tables(kernels, characters, filters), bias)
    found = kernels.spell(ids, lengths, known.halves(kernels.panel), tanh=tanh)
    np.testing.assert_array_equal(kernels.spell(ids, lengths, [known], tanh=tanh), found)
    expected = []
    for bank in filters:
        width = bank.shape[2]
        windows = [characters[ids[:, p : p + width]].astype(np.float64) for p in range(columns - width + 1)]
        expected.append(np.max([np.einsum("ncw,bwc->bn", bank, window) for window in windows], axis=0))
    expected = np.concatenate(expected, axis=1) + bias
    expected = np.tanh(expected) if tanh else np.maximum(expected, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_a_character_that_is_not_in_the_tables_is_refused(instruction_set):
    kernels = kernels_for(instruction_set)
    known = Tables(3, np.array([1]), np.array([2]), np.zeros(3 * kernels.panel, np.float32), np.zeros(2, np.float32))
    for wrong in (3, -1):
        with pytest.raises(IndexError, match="0 to 2"):
            kernels.spell(np.array([[0, wrong]], np.int32), np.array([2]), [known], tanh=False)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), width=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_highway_lets_through_what_its_gate_holds_back(instruction_set, rows, width, seed):
    rng = np.random.default_rng(seed)
    gate, transform, z = (drawn(rng, rows, width, scale=4) for _ in range(3))
    size = max(np.abs(transform).max(), np.abs(z).max())
    share = 1 / (1 + np.exp(-gate.astype(np.float64)))
    expected = share * np.maximum(transform, 0) + (1 - share) * z
    kernels_for(instruction_set).highway(gate, transform, z)
    np.testing.assert_allclose(z, expected, rtol=1e-6, atol=1e-6 * size)


def test_the_functions_of_the_gates_are_exact_everywhere(instruction_set):
    """One cell, whose four inputs are its gates."""
    kernels = kernels_for(instruction_set)
    as_given = packed(kernels, "float32", np.eye(4, dtype=np.float32), parts=4)
    nothing = packed(kernels, "float32", np.zeros((4, 1), np.float32), parts=4)
    layer = PackedLayer(kernels, as_given, nothing, None, cells=1, cell_clip=None, projection_clip=None)
    values = np.concatenate([np.linspace(-30, 30, 4001), np.geomspace(1e-7, 1, 500), [-1e4, 1e4, 0]])
    starts, h = np.array([0, len(values)]), np.zeros((len(values), 1), np.float32)
    gates = np.zeros((len(values), 4), np.float32)
    gates[:, 2] = values  # the candidate
    gates[:, [0, 1, 3]] = 30  # open
    found = layer.steps(gates, starts, h, (c := np.zeros((len(values), layer.memory_room), np.float32)))()
    values = values.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(c[:, 0], np.tanh(values), rtol=6e-7)
    np.testing.assert_allclose(found[:, 0], np.tanh(np.tanh(values)), rtol=1.2e-6)
    gates[:] = 0
    gates[:, 1] = values  # the forget gate of a memory of one
    c[:] = 1
    layer.steps(gates, starts, h, c)()
    np.testing.assert_allclose(c[:, 0], 0.5 + 0.5 * np.tanh(values / 2), atol=4e-7)


def one_layer(weights, inputs, starts, h, c, cell_clip, projection_clip):
    """The definition in float64, on rows step by step -> outputs; h and c are moved on."""
    weight_ih, weight_hh, bias, weight_hr = weights
    outputs = []
    for a, b in itertools.pairwise(starts):
        n = b - a
        gates = inputs[a:b] @ weight_ih.T + h[:n] @ weight_hh.T + bias
        i, f, g, o = np.split(gates, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
        c[:n] = np.clip(f * c[:n] + i * np.tanh(g), -cell_clip, cell_clip)
        m = o * np.tanh(c[:n])
        h[:n] = m if weight_hr is None else np.clip(m @ weight_hr.T, -projection_clip, projection_clip)
        outputs.append(h[:n].copy())
    return np.concatenate(outputs)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    cells=st.integers(1, 70),
    width=st.integers(1, 40) | st.sampled_from([500, 520]),
    inputs=st.integers(1, 40),
    projected=st.booleans(),
    clips=st.sampled_from([(float("inf"), float("inf")), (3.0, 3.0), (0.4, 0.2)]),
    active=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_a_layer_is_that_of_float64_and_takes_gates_or_inputs_alike(
    instruction_set, kind, cells, width, inputs, projected, clips, active, seed
):
    kernels, rng = kernels_for(instruction_set), np.random.default_rng(seed)
    width = width if projected else cells
    starts = np.concatenate([[0], np.cumsum(sorted(active, reverse=True))])
    weights = [
        drawn(rng, 4 * cells, inputs, scale=inputs**-0.5),
        drawn(rng, 4 * cells, width, scale=width**-0.5),
        drawn(rng, 4 * cells, scale=0.5),
        drawn(rng, width, cells, scale=2 * cells**-0.5) if projected else None,
    ]
    batch = int(starts[1])
    h, memory = drawn(rng, batch, width, scale=0.5), drawn(rng, batch, cells, scale=0.5)
    distinct, which = drawn(rng, 7, inputs), rng.integers(0, 7, starts[-1])
    layer = PackedLayer(
        kernels,
        packed(kernels, kind, weights[0], weights[2], parts=4),
        packed(kernels, kind, weights[1], parts=4),
        packed(kernels, kind, weights[3]) if projected else None,
        cells=cells,
        cell_clip=None if clips[0] == float("inf") else clips[0],
        projection_clip=None if clips[1] == float("inf") else clips[1],
    )
    found = []
    for rows, how in (
        (distinct[which], {}),
        (distinct, {"which": which}),
        (distinct[which], {"stored": 1}),
        (distinct[which], {"stored": 9}),
        (distinct[which], {"stored": 10_000}),
    ):
        state = h.copy(), np.full((batch, layer.memory_room), np.nan, np.float32)
        state[1][:, :cells] = memory
        found.append((layer.steps(rows, starts, *state, **how)(), state[0], state[1][:, :cells]))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)
    state = h.astype(np.float64), memory.astype(np.float64)
    expected = one_layer(weights, distinct[which].astype(np.float64), starts, *state, *clips)
    for x, y in zip(found[0], (expected, *state), strict=True):
        if kind == "float32":
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)
        else:
            bound = {"int16": 5e-3, "int8": 8e-2}[kind]
            assert np.abs(x - y).max() <= bound * max(1.0, np.abs(y).max())
