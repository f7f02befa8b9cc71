"""Benchmarks by name: images, true classes, and which classes are known and which images are labelled.

Listing the benchmarks imports no reader, and therefore neither torch nor torchvision.
"""

from typing import TYPE_CHECKING, Any

from promptcal.data.benchmarks.catalogue import (
    BENCHMARKS,
    BenchmarkListing,
    benchmark_names,
    default_root,
    get_benchmark,
    list_benchmarks,
)
from promptcal.data.benchmarks.spec import BenchmarkSpec, Layout, Split

if TYPE_CHECKING:
    from promptcal.data.benchmarks.benchmark_data import load_benchmark

__all__ = ["BENCHMARKS", "BenchmarkListing", "BenchmarkSpec", "Layout", "Split", "benchmark_names", "default_root"]
__all__ += ["get_benchmark", "list_benchmarks", "load_benchmark"]


def __getattr__(name: str) -> Any:
    if name != "load_benchmark":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from promptcal.data.benchmarks import benchmark_data

    return benchmark_data.load_benchmark
