"""Benchmarks by name: images, true classes, and which classes are known and which images are labelled.

Listing the benchmarks imports no reader, and therefore neither torch nor torchvision.
"""

from typing import TYPE_CHECKING, Any

from promptcal.data.benchmarks.registry import (
    BENCHMARKS,
    BenchmarkListing,
    benchmark_names,
    default_root,
    get_benchmark,
    list_benchmarks,
)
from promptcal.data.benchmarks.spec import BenchmarkSpec, Layout

if TYPE_CHECKING:
    from promptcal.data.benchmarks.benchmark_data import BenchmarkData, Split, load_benchmark

__all__ = [
    "BENCHMARKS",
    "BenchmarkData",
    "BenchmarkListing",
    "BenchmarkSpec",
    "Layout",
    "Split",
    "benchmark_names",
    "default_root",
    "get_benchmark",
    "list_benchmarks",
    "load_benchmark",
]


def __getattr__(name: str) -> Any:
    if name in ("BenchmarkData", "Split", "load_benchmark"):
        from promptcal.data.benchmarks import benchmark_data

        return getattr(benchmark_data, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
