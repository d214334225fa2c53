"""`conv_pool` on a GPU: what is sorted, packed and launched. Nothing of size (words, positions, filters) exists, in either direction.

Words are sorted by length, longest first, so that a tile of words stops at the first window of its longest word's padding: the
windows after it are copies. Sums over words are split over programs whose parts are added in a fixed order: no atomics.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmofire.kernels import convolution_programs as programs
from elmofire.kernels.convolution import tails
from elmofire.kernels.paths import in_given_types
from elmofire.kernels.sums import sum_of_rows

STRIP = 8  # positions of one word that are rows of one tile of the backward product


class Tiles(NamedTuple):
    """Sizes of the programs' tiles, powers of two."""

    words: int  # forward
    filters: int
    whole: int  # the longest window that is one product, its filters kept on the chip; longer ones go piece by piece
    depth: int  # what a piece sums over
    rows: int  # backward: (word, position) pairs
    columns: int  # backward: of the packed filters
    splits: int  # backward: programs that share the words
    warps: int
    warps_back: int


# Halves run on tensor cores; float32 is plain arithmetic, with its operands in registers.
_HALF = Tiles(words=64, filters=128, whole=128, depth=64, rows=128, columns=128, splits=32, warps=4, warps_back=8)
TILES = {
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
    torch.float32: Tiles(
        words=32, filters=64, whole=0, depth=16, rows=32, columns=64, splits=32, warps=4, warps_back=4
    ),
}


def conv_pool(
    ids: Tensor, characters: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> Tensor:
    leaves = (characters, *weights, *biases)
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    return _ConvPool.apply(ids, dtype, keep, len(weights), *leaves)  # pyright: ignore[reportReturnType]


class _ConvPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids: Tensor,
        dtype: torch.dtype,
        keep: bool,  # noqa: FBT001
        groups: int,
        characters: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        weights, biases = parameters[:groups], parameters[groups:]
        n, positions = ids.shape
        dim = characters.shape[1]
        shapes = [(weight.shape[0], weight.shape[2]) for weight in weights]
        tiles = TILES[dtype]

        tail = tails(ids)
        tail, order = tail.sort(descending=True, stable=True)
        filters = _packed(weights, dtype)
        spare = -(
            -filters.shape[1] // dim
        )  # a window that starts in the last word may be read to the packed filters' width
        letters = torch.nn.functional.pad(ids[order].flatten(), (0, spare))
        x = characters.to(dtype).index_select(0, letters)  # (n * positions + spare, dim)
        bias = torch.cat([b.float() for b in biases])
        pooled = x.new_empty(n, len(bias))
        places = torch.empty(n, len(bias) if keep else 0, dtype=_index(positions), device=ids.device)
        blocks = sum(triton.cdiv(count, tiles.filters) for count, _ in shapes)
        one_piece = filters.shape[1] <= tiles.whole
        if n:
            with torch.cuda.device_of(ids):
                programs.maxima[(blocks, triton.cdiv(n, tiles.words))](
                    x,
                    tail,
                    order,
                    filters,
                    bias,
                    pooled,
                    places,
                    n,
                    filters.shape[1],
                    COUNTS=tuple(count for count, _ in shapes),
                    WIDTHS=tuple(width for _, width in shapes),
                    FILTERS=len(bias),
                    LETTERS=positions,
                    DIM=dim,
                    WORDS_TILE=tiles.words,
                    FILTERS_TILE=tiles.filters,
                    DEPTH=filters.shape[1] if one_piece else tiles.depth,
                    ONE_PIECE=one_piece,
                    KEEP=keep,
                    num_warps=tiles.warps if one_piece else tiles.warps_back,
                    num_stages=3,
                )
        if keep:
            ctx.save_for_backward(letters, x, tail, order, filters, places)
            ctx.shapes, ctx.positions, ctx.table = shapes, positions, characters.shape
            ctx.dtypes = [characters.dtype, *(parameter.dtype for parameter in parameters)]
        return pooled

    @staticmethod
    @once_differentiable
    @in_given_types
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        letters, x, tail, order, filters, places = ctx.saved_tensors
        wants_characters, *wants = ctx.needs_input_grad[4:]
        groups = len(ctx.shapes)
        starts = [sum(count for count, _ in ctx.shapes[:k]) for k in range(groups)]
        grad = grad.index_select(0, order).to(x.dtype)
        with torch.cuda.device_of(grad):
            found: list[Tensor | None] = [None] * (1 + 2 * groups)
            if wants_characters:
                found[0] = _characters_gradient(grad, letters, tail, filters, places, ctx)
            if any(wants[:groups]):
                packed = _filters_gradient(grad, x, places, tail, filters.shape[1], ctx.positions)
                for k, (count, width) in enumerate(ctx.shapes):
                    part = packed[starts[k] : starts[k] + count, : width * x.shape[1]]
                    found[1 + k] = part.unflatten(1, (width, x.shape[1])).transpose(1, 2)
            if any(wants[groups:]):
                summed = sum_of_rows(grad, torch.float32)
                for k, (count, _) in enumerate(ctx.shapes):
                    found[1 + groups + k] = summed[starts[k] : starts[k] + count]
        given = [None if d is None else d.to(dtype) for d, dtype in zip(found, ctx.dtypes, strict=True)]
        return None, None, None, None, *given


def _packed(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All widths (count, dim, width) as rows of one matrix, as a window lies in memory, zeros up to a power of two."""
    dim = weights[0].shape[1]
    widest = triton.next_power_of_2(max(16, dim * max(weight.shape[2] for weight in weights)))
    packed = torch.zeros(sum(len(weight) for weight in weights), widest, dtype=dtype, device=weights[0].device)
    start = 0
    for weight in weights:
        count, _, width = weight.shape
        packed[start : start + count, : width * dim].unflatten(1, (width, dim)).copy_(weight.transpose(1, 2))
        start += count
    return packed


def _index(positions: int) -> torch.dtype:
    return torch.uint8 if positions <= 256 else torch.int16


def _filters_gradient(grad: Tensor, x: Tensor, places: Tensor, tail: Tensor, columns: int, positions: int) -> Tensor:
    n, count = grad.shape
    tiles = TILES[grad.dtype]
    splits = min(tiles.splits, triton.cdiv(n, tiles.depth)) or 1
    width = min(columns, tiles.columns)
    parts = torch.empty(splits, count, columns, dtype=torch.float32, device=grad.device)
    programs.windows_sum[(triton.cdiv(count, tiles.filters), splits, columns // width)](
        grad,
        x,
        places,
        tail,
        parts,
        n,
        splits,
        FILTERS=count,
        LETTERS=positions,
        DIM=x.shape[1],
        COLUMNS=columns,
        WORDS_TILE=tiles.depth,
        FILTERS_TILE=tiles.filters,
        COLUMNS_TILE=width,
        num_warps=tiles.warps_back,
        num_stages=3,
    )
    return parts.sum(dim=0)


def _characters_gradient(
    grad: Tensor, letters: Tensor, tail: Tensor, filters: Tensor, places: Tensor, ctx: Any
) -> Tensor:
    """Of every window that was the largest somewhere, then of every character in those windows."""
    n, count = grad.shape
    table, dim = ctx.table
    tiles = TILES[grad.dtype]
    columns = filters.shape[1]
    rows = triton.cdiv(ctx.positions, STRIP)  # tiles of positions per word
    words = tiles.rows // STRIP
    groups = triton.cdiv(n, words)
    windows = grad.new_empty(n, rows * STRIP, columns)
    width = min(columns, tiles.columns)
    if n:
        programs.windows_gradient[(groups, rows, columns // width)](
            grad,
            filters,
            places,
            tail,
            windows,
            n,
            FILTERS=count,
            PLACES=rows * STRIP,
            COLUMNS=columns,
            STRIP=STRIP,
            ROWS_TILE=tiles.rows,
            COLUMNS_TILE=width,
            DEPTH=tiles.depth,
            num_warps=tiles.warps_back,
            num_stages=3,
        )
    splits = min(tiles.splits, groups * rows) or 1
    tile = 64
    depth = triton.next_power_of_2(max(16, dim))
    parts = torch.empty(splits, table, dim, dtype=torch.float32, device=grad.device)
    programs.characters_sum[(triton.cdiv(table, tile), splits)](
        windows,
        letters,
        tail,
        parts,
        n,
        table,
        groups * rows,
        splits,
        WIDEST=max(width for _, width in ctx.shapes),
        LETTERS=ctx.positions,
        PLACES=rows * STRIP,
        COLUMNS=columns,
        DIM=dim,
        DIM_TILE=depth,
        STRIP=STRIP,
        ROWS_TILE=tiles.rows,
        TILE=tile,
        num_warps=4,
    )
    return parts.sum(dim=0)
