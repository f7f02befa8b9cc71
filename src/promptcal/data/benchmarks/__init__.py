"""Benchmarks by name: images, true classes, and which classes are known and which images are labelled.

Listing the benchmarks imports no reader, and therefore neither torch nor torchvision.
"""

from typing import TYPE_CHECKING

from promptcal.data.benchmarks.catalogue import (
    BENCHMARKS,
    BenchmarkListing,
    benchmark_names,
    default_root,
    get_benchmark,
    list_benchmarks,
)
from promptcal.data.benchmarks.spec import BenchmarkSpec, Layout, Split
from promptcal.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from promptcal.data.benchmarks.benchmark_data import load_benchmark

__all__ = ["BENCHMARKS", "BenchmarkListing", "BenchmarkSpec", "Layout", "Split", "benchmark_names", "default_root"]
__all__ += ["get_benchmark", "list_benchmarks", "load_benchmark"]

__getattr__ = lazy_names(__name__, {"benchmark_data": "load_benchmark"})
