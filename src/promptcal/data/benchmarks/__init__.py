"""The benchmarks of the paper by name: images, true classes, and which are known and labelled."""

from promptcal.data.benchmarks.registry import (
    Benchmark,
    Listing,
    Setup,
    benchmark,
    benchmark_names,
    default_root,
    listing,
    setup,
)

__all__ = ["Benchmark", "Listing", "Setup", "benchmark", "benchmark_names", "default_root", "listing", "setup"]
