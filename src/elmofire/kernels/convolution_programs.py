"""The Triton programs of `conv_pool`.

Forward, a tile of filters slides over a tile of words and keeps the running maximum and its place. Backward, every (word, filter) has
one window, at that place: the gradients, spread out over the places in registers, are multiplied with the windows for the filters'
gradient, and with the filters for the windows' own, which are then added up by character. Words come sorted by falling `tail`, the
place of the last window that differs from all later ones.
"""

import triton
import triton.language as tl


@triton.jit
def maxima(
    x,
    tail,
    order,
    filters,
    bias,
    pooled,
    places,
    n,
    columns,
    COUNTS: tl.constexpr,
    WIDTHS: tl.constexpr,
    FILTERS: tl.constexpr,
    LETTERS: tl.constexpr,
    DIM: tl.constexpr,
    WORDS_TILE: tl.constexpr,
    FILTERS_TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    ONE_PIECE: tl.constexpr,
    KEEP: tl.constexpr,
):
    """The largest answer of each filter over each word's windows, and where it was."""
    # The block's filters, all of one width.
    block = tl.program_id(0)
    first, end, width = 0, 0, 0
    blocks_before, filters_before = 0, 0
    for g in tl.static_range(len(COUNTS)):
        blocks = (COUNTS[g] + FILTERS_TILE - 1) // FILTERS_TILE
        if (block >= blocks_before) & (block < blocks_before + blocks):
            first = filters_before + (block - blocks_before) * FILTERS_TILE
            end = filters_before + COUNTS[g]
            width = WIDTHS[g]
        blocks_before += blocks
        filters_before += COUNTS[g]

    word = tl.program_id(1) * WORDS_TILE + tl.arange(0, WORDS_TILE)
    f = first + tl.arange(0, FILTERS_TILE)
    k = tl.arange(0, DEPTH)
    here = word < n
    windows = x + word.to(tl.int64)[:, None] * (LETTERS * DIM) + k[None, :]
    weights = filters + f[None, :] * columns + k[:, None]
    if ONE_PIECE:
        weight = tl.load(weights, mask=(f < end)[None, :], other=0.0)

    best = tl.full((WORDS_TILE, FILTERS_TILE), float("-inf"), tl.float32)
    place = tl.zeros((WORDS_TILE, FILTERS_TILE), tl.int32)
    last = tl.minimum(tl.load(tail + tl.program_id(1) * WORDS_TILE).to(tl.int32), LETTERS - width)
    for p in range(last + 1):
        if ONE_PIECE:
            window = tl.load(windows + p * DIM, mask=here[:, None] & (k < width * DIM)[None, :], other=0.0)
            z = tl.dot(window, weight, input_precision="ieee")
        else:
            z = tl.zeros((WORDS_TILE, FILTERS_TILE), tl.float32)
            for start in range(0, width * DIM, DEPTH):
                window = tl.load(
                    windows + p * DIM + start, mask=here[:, None] & (k < width * DIM - start)[None, :], other=0.0
                )
                piece = tl.load(weights + start, mask=(f < end)[None, :], other=0.0)
                z = tl.dot(window, piece, z, input_precision="ieee")
        if KEEP:
            place = tl.where(z > best, p, place)
        best = tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL)

    best += tl.load(bias + f, mask=f < end, other=0.0)[None, :]
    inside = here[:, None] & (f < end)[None, :]
    row = tl.load(order + word, mask=here, other=0)
    tl.store(pooled + row[:, None] * FILTERS + f[None, :], best.to(pooled.dtype.element_ty), mask=inside)
    if KEEP:
        at = word.to(tl.int64)[:, None] * FILTERS + f[None, :]
        tl.store(places + at, place.to(places.dtype.element_ty), mask=inside)


@triton.jit
def windows_sum(
    grad,
    x,
    places,
    tail,
    parts,
    n,
    splits,
    FILTERS: tl.constexpr,
    LETTERS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    WORDS_TILE: tl.constexpr,
    FILTERS_TILE: tl.constexpr,
    COLUMNS_TILE: tl.constexpr,
):
    """For each filter, the sum of the words' largest windows times the filter's gradient; of every splits-th tile of words."""
    f = tl.program_id(0) * FILTERS_TILE + tl.arange(0, FILTERS_TILE)
    k = tl.program_id(2) * COLUMNS_TILE + tl.arange(0, COLUMNS_TILE)
    total = tl.zeros((FILTERS_TILE, COLUMNS_TILE), tl.float32)
    for first in range(tl.program_id(1) * WORDS_TILE, n, splits * WORDS_TILE):
        word = first + tl.arange(0, WORDS_TILE)
        here = word < n
        row = word.to(tl.int64)
        inside = (f < FILTERS)[:, None] & here[None, :]
        at = row[None, :] * FILTERS + f[:, None]
        place = tl.load(places + at, mask=inside, other=0).to(tl.int32)
        d = tl.load(grad + at, mask=inside, other=0.0)
        windows = x + row[:, None] * (LETTERS * DIM) + k[None, :]
        for p in range(tl.load(tail + first).to(tl.int32) + 1):
            window = tl.load(windows + p * DIM, mask=here[:, None], other=0.0)
            total = tl.dot(tl.where(place == p, d, 0.0), window, total, input_precision="ieee")
    at = (tl.program_id(1) * FILTERS + f).to(tl.int64)[:, None] * COLUMNS + k[None, :]
    tl.store(parts + at, total, mask=(f < FILTERS)[:, None])


@triton.jit
def windows_gradient(
    grad,
    filters,
    places,
    tail,
    windows,
    n,
    FILTERS: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIP: tl.constexpr,
    ROWS_TILE: tl.constexpr,
    COLUMNS_TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The gradient of each window of a few words, at a few positions."""
    r = tl.arange(0, ROWS_TILE)
    first_word = tl.program_id(0) * (ROWS_TILE // STRIP)
    first_place = tl.program_id(1) * STRIP
    if first_place <= tl.load(tail + first_word):  # no window after the tail's first is anyone's largest
        word = first_word + r // STRIP
        p = first_place + r % STRIP
        k = tl.program_id(2) * COLUMNS_TILE + tl.arange(0, COLUMNS_TILE)
        row = word.to(tl.int64)
        total = tl.zeros((ROWS_TILE, COLUMNS_TILE), tl.float32)
        for start in range(0, FILTERS, DEPTH):
            f = start + tl.arange(0, DEPTH)
            inside = (word < n)[:, None] & (f < FILTERS)[None, :]
            place = tl.load(places + row[:, None] * FILTERS + f[None, :], mask=inside, other=0).to(tl.int32)
            d = tl.load(grad + row[:, None] * FILTERS + f[None, :], mask=inside, other=0.0)
            weight = tl.load(filters + f[:, None] * COLUMNS + k[None, :], mask=(f < FILTERS)[:, None], other=0.0)
            d = tl.where(place == p[:, None], d, 0.0)
            total = tl.dot(d, weight, total, input_precision="ieee")
        at = (row * PLACES + p)[:, None] * COLUMNS + k[None, :]
        tl.store(windows + at, total.to(windows.dtype.element_ty), mask=(word < n)[:, None])


@triton.jit
def characters_sum(
    windows,
    letters,
    tail,
    parts,
    n,
    table,
    blocks,
    splits,
    WIDEST: tl.constexpr,
    LETTERS: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    STRIP: tl.constexpr,
    ROWS_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """For each character, the sum of the windows' gradients where it stands: a product with the matrix of who stands where."""
    c = tl.program_id(0) * TILE + tl.arange(0, TILE)
    split = tl.program_id(1)
    d = tl.arange(0, DIM_TILE)
    r = tl.arange(0, ROWS_TILE)
    total = tl.zeros((TILE, DIM_TILE), tl.float32)
    for block in range(split, blocks, splits):
        first_word = (block // (PLACES // STRIP)) * (ROWS_TILE // STRIP)
        first_place = (block % (PLACES // STRIP)) * STRIP
        word = (first_word + r // STRIP).to(tl.int64)
        p = first_place + r % STRIP
        live = tl.where(first_place <= tl.load(tail + first_word), WIDEST, 0)  # the others were never written
        for j in range(live):
            standing = (word < n) & (p + j < LETTERS)
            letter = tl.load(letters + word * LETTERS + p + j, mask=standing, other=-1)
            value = tl.load(
                windows + (word * PLACES + p)[:, None] * COLUMNS + j * DIM + d[None, :],
                mask=standing[:, None] & (d < DIM)[None, :],
                other=0.0,
            )
            stands = (letter[None, :] == c[:, None]).to(windows.dtype.element_ty)
            total = tl.dot(stands, value, total, input_precision="ieee")
    at = (split * table + c)[:, None] * DIM + d[None, :]
    tl.store(parts + at, total, mask=(c < table)[:, None] & (d < DIM)[None, :])
