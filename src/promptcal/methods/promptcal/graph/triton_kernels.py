"""The kernels behind `kernels.py`. Triton reads their source, annotations too, hence they have no types."""

import triton
import triton.language as tl


@triton.jit
def split(matrix, rows, high, low, n, columns, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    value = tl.load(matrix + at, mask=there) * tl.load(rows + at // columns, mask=there)
    first = value.to(tl.float16)
    tl.store(high + at, first, mask=there)
    tl.store(low + at, ((value - first.to(tl.float32)) * SPLIT).to(tl.float16), mask=there)


@triton.jit
def join(high, low, scale, n, columns, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    value = tl.load(high + at, mask=there) + tl.load(low + at, mask=there) * (1 / SPLIT)
    value *= tl.load(scale + at // columns, mask=there) * tl.load(scale + at % columns, mask=there)
    tl.store(high + at, value, mask=there)


@triton.jit
def moments(values, sums, nonzeros, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + at, mask=at < n, other=0.0)
        total += value
        count += (value != 0).to(tl.int32)
    tl.store(sums + program, tl.sum(total.to(tl.float64)))
    tl.store(nonzeros + program, tl.sum(count).to(tl.int64))


@triton.jit
def digits(bits, mean, prefix, counts, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Of the entries above the mean that begin with the prefix, how many go on with each of 256 digits."""
    program = tl.program_id(0).to(tl.int64)
    floor = tl.load(mean)
    wanted = tl.load(prefix)
    found = tl.zeros([256], tl.int32)
    others = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        entry = tl.load(bits + at, mask=at < n, other=0)
        counted = (entry.to(tl.float32, bitcast=True) > floor) & (at < n)
        if SHIFT < 24:
            counted = counted & ((entry >> (SHIFT + 8)) == wanted)
        found += tl.histogram(tl.where(counted, (entry >> SHIFT) & 255, 0), 256)
        others += 1 - counted.to(tl.int32)
    bins = tl.arange(0, 256)
    found = tl.where(bins == 0, found - tl.sum(others), found)
    tl.atomic_add(counts + bins, found, mask=found > 0)


@triton.jit
def narrow(counts, prefix, ranks, QUANTILE: tl.constexpr, FIRST: tl.constexpr):
    """Append the digit that the wanted entry has, and clear the counts."""
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
def following(bits, low, smallest_above, larger, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The smallest entry above ``low``, and how many there are."""
    program = tl.program_id(0).to(tl.int64)
    bound = tl.load(low)
    smallest = tl.full([BLOCK], 2147483647, tl.int32)
    count = tl.zeros([BLOCK], tl.int32)
    for i in range(ROUNDS):
        at = (program * ROUNDS + i) * BLOCK + tl.arange(0, BLOCK)
        entry = tl.load(bits + at, mask=at < n, other=0)
        above = entry > bound
        smallest = tl.minimum(smallest, tl.where(above, entry, 2147483647))
        count += above.to(tl.int32)
    tl.atomic_min(smallest_above, tl.min(smallest))
    tl.atomic_add(larger, tl.sum(count))


@triton.jit
def interpolate(low_bits, high_bits, larger, ranks, mean, result, QUANTILE: tl.constexpr):
    """Between the low entry and the next one up, which is as large where equal ones are left over."""
    low_rank = tl.load(ranks + 1)
    above = tl.load(ranks + 2)
    n_larger = tl.load(larger).to(tl.int64)
    low = tl.load(low_bits).to(tl.float32, bitcast=True)
    high = tl.load(high_bits).to(tl.float32, bitcast=True)
    high = tl.where((above - n_larger > low_rank + 1) | (n_larger == 0), low, high)
    fraction = tl.maximum(above - 1, 0).to(tl.float64) * QUANTILE - low_rank.to(tl.float64)
    between = low + (high - low) * fraction.to(tl.float32)
    tl.store(result, tl.where(above > 0, between, tl.load(mean)))
