"""Seeds derived from the run's seed and the place they are used in, so that a run can go on from any step."""

import zlib

import numpy as np


def derive_seed(seed: int, *place: str | int) -> int:
    """A 63-bit seed for, say, ("affinity", "views", epoch, step)."""
    words = [zlib.crc32(p.encode()) if isinstance(p, str) else p for p in place]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> np.uint64(1))
