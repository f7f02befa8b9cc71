"""Triton kernels of `kernels.py`. Triton parses their source with its annotations, so they have no type hints."""

import triton
import triton.language as tl


@triton.jit
def split(matrix, rows, high, low, n, columns, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    value = tl.load(matrix + index, mask=inside) * tl.load(rows + index // columns, mask=inside)
    first = value.to(tl.float16)
    tl.store(high + index, first, mask=inside)
    tl.store(low + index, ((value - first.to(tl.float32)) * SPLIT).to(tl.float16), mask=inside)


@triton.jit
def join(high, low, scale, n, columns, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    value = tl.load(high + index, mask=inside) + tl.load(low + index, mask=inside) * (1 / SPLIT)
    value *= tl.load(scale + index // columns, mask=inside) * tl.load(scale + index % columns, mask=inside)
    tl.store(high + index, value, mask=inside)


@triton.jit
def sum_rows(
    rows, entries, starts, before, after, own, degrees, sums, columns, SUBTRACTS: tl.constexpr, BLOCK: tl.constexpr
):
    """``sums[i] = after[i] * (the sum of before[j] * rows[j] over the list i - degrees[i] * own[i])``, one i and some
    columns in a program.

    Programs of the same columns run after each other, so that these columns stay in the cache.
    """
    i = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(tl.load(starts + i), tl.load(starts + i + 1)):
        j = tl.load(entries + place)
        total += tl.load(rows + j * columns + column, mask=inside, other=0.0).to(tl.float32) * tl.load(before + j)
    if SUBTRACTS:
        total -= tl.load(degrees + i) * tl.load(own + i * columns + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + i * columns + column, total * tl.load(after + i), mask=inside)


@triton.jit
def moments(values, sums, nonzeros, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        index = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + index, mask=index < n, other=0.0)
        total += value
        count += (value != 0).to(tl.int32)
    tl.store(sums + program, tl.sum(total.to(tl.float64)))
    tl.store(nonzeros + program, tl.sum(count).to(tl.int64))


@triton.jit
def count_digits(bits, mean, prefix, counts, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Histogram of the next 8 bits of the entries that are above the mean and start with the prefix."""
    program = tl.program_id(0).to(tl.int64)
    floor = tl.load(mean)
    selected = tl.load(prefix)
    found = tl.zeros([256], tl.int32)
    others = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        index = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        entry = tl.load(bits + index, mask=index < n, other=0)
        counted = (entry.to(tl.float32, bitcast=True) > floor) & (index < n)
        if SHIFT < 24:
            counted = counted & ((entry >> (SHIFT + 8)) == selected)
        found += tl.histogram(tl.where(counted, (entry >> SHIFT) & 255, 0), 256)
        others += 1 - counted.to(tl.int32)
    bins = tl.arange(0, 256)
    found = tl.where(bins == 0, found - tl.sum(others), found)
    tl.atomic_add(counts + bins, found, mask=found > 0)


@triton.jit
def select_digit(counts, prefix, ranks, QUANTILE: tl.constexpr, FIRST: tl.constexpr):
    """Append the selected entry's 8 bits to the prefix, and clear the counts."""
    bins = tl.arange(0, 256)
    count = tl.load(counts + bins)
    rank = tl.load(ranks)
    if FIRST:
        above = tl.sum(count).to(tl.int64)
        rank = (tl.maximum(above - 1, 0).to(tl.float64) * QUANTILE).to(tl.int64)
        tl.store(ranks + 1, rank)
        tl.store(ranks + 2, above)
    digit = tl.minimum(tl.sum((tl.cumsum(count, 0) <= rank).to(tl.int32)), 255)
    tl.store(ranks, rank - tl.sum(tl.where(bins < digit, count, 0)))
    tl.store(prefix, tl.load(prefix) * 256 + digit)
    tl.store(counts + bins, tl.zeros([256], tl.int32))


@triton.jit
def find_next(bits, low, smallest_above, larger, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The smallest entry above ``low``, and the number of entries above ``low``."""
    program = tl.program_id(0).to(tl.int64)
    bound = tl.load(low)
    smallest = tl.full([BLOCK], 2147483647, tl.int32)
    count = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        index = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        entry = tl.load(bits + index, mask=index < n, other=0)
        above = entry > bound
        smallest = tl.minimum(smallest, tl.where(above, entry, 2147483647))
        count += above.to(tl.int32)
    tl.atomic_min(smallest_above, tl.min(smallest))
    tl.atomic_add(larger, tl.sum(count))


@triton.jit
def interpolate(low_bits, high_bits, larger, ranks, mean, result, QUANTILE: tl.constexpr):
    """Interpolate between the low entry and the next larger one, or the same value if it occurs again."""
    low_rank = tl.load(ranks + 1)
    above = tl.load(ranks + 2)
    n_larger = tl.load(larger).to(tl.int64)
    low = tl.load(low_bits).to(tl.float32, bitcast=True)
    high = tl.load(high_bits).to(tl.float32, bitcast=True)
    high = tl.where((above - n_larger > low_rank + 1) | (n_larger == 0), low, high)
    fraction = tl.maximum(above - 1, 0).to(tl.float64) * QUANTILE - low_rank.to(tl.float64)
    between = low + (high - low) * fraction.to(tl.float32)
    tl.store(result, tl.where(above > 0, between, tl.load(mean)))
