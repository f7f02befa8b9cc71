"""Means over seeds with 95 % intervals, and paired differences between two rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Statistic:
    r"""Mean of ``n`` values with its 95 % interval.

    $$\bar{x} \pm t_{0.975, n-1} \frac{s}{\sqrt{n}},$$

    where s is the standard deviation (n - 1 in the denominator) and t the quantile of Student's t distribution. It
    assumes that the values are independent and roughly normal. With one value, ``std`` and ``ci95`` are NaN.
    """

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Statistic":
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std, len(values))

    @property
    def ci95(self) -> float:
        """Half the width of the interval."""
        return float(stdtrit(self.n - 1, 0.975)) * self.std / math.sqrt(self.n) if self.n > 1 else math.nan

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain 0; never with one value."""
        return self.n > 1 and abs(self.mean) > self.ci95


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Statistic | None:
    """The difference to the reference over the seeds that both have (a paired t interval); None without any."""
    seeds = [seed for seed in values if seed in reference]
    return Statistic.of([values[seed] - reference[seed] for seed in seeds]) if seeds else None
