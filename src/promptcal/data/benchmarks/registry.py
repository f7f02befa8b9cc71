"""The benchmarks by name. Other packages add theirs with the entry-point group ``promptcal.benchmarks``."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from promptcal.data.benchmarks.spec import INDUCTIVE, BenchmarkSpec
from promptcal.errors import DataError
from promptcal.runtime.plugins import Registry

ROOT_VARIABLE = "PROMPTCAL_DATA"
_BUILT_IN = (
    *("cifar10", "cifar100", "imagenet100", "cub", "cars", "aircraft", "herbarium19", "mini"),
    *("cifar100-c50-l10", "cifar100-c25-l50", "cifar100-c10-l50"),
    *("mini-c50-l10", "mini-c30-l50", "mini-c20-l50"),
)

BENCHMARKS: Registry[BenchmarkSpec] = Registry(
    "benchmark",
    "promptcal.benchmarks",
    {name: f"promptcal.data.benchmarks.catalogue:{name.upper().replace('-', '_')}" for name in _BUILT_IN},
)


@dataclass(frozen=True)
class BenchmarkListing:
    """A benchmark as `promptcal datasets` shows it; ``found`` is None if its data are absent."""

    spec: BenchmarkSpec
    searched: list[Path]
    found: Path | None


def benchmark_names() -> list[str]:
    """All names; ``NAME-inductive`` is the inductive variant of NAME. Imports no plug-in."""
    names = BENCHMARKS.names()
    return [*names, *(f"{name}{INDUCTIVE}" for name in names)]


def get_benchmark(name: str) -> BenchmarkSpec:
    """The declaration of a benchmark or of its inductive variant."""
    base = name.removesuffix(INDUCTIVE)
    if base not in BENCHMARKS:
        raise DataError(f"there is no benchmark {name!r}; choose one of {', '.join(benchmark_names())}")
    spec, inductive = BENCHMARKS[base], base != name
    if not isinstance(spec, BenchmarkSpec):
        raise DataError(f"the benchmark {base!r} is a {type(spec).__name__}; its package must give a BenchmarkSpec")
    if inductive and not spec.has_test:
        raise DataError(f"{spec.title} has no test images; use the benchmark {base}")
    return replace(spec, name=name, inductive=inductive)


def default_root() -> Path:
    """The folder in the environment variable PROMPTCAL_DATA, by default ./data."""
    return Path(os.environ.get(ROOT_VARIABLE) or "data")


def list_benchmarks(root: str | os.PathLike[str] | None = None) -> list[BenchmarkListing]:
    """All benchmarks, and where below ``root`` (by default `default_root`) their data are."""
    folder = default_root() if root is None else Path(root)
    rows = []
    for name in benchmark_names():
        if name.endswith(INDUCTIVE) and not BENCHMARKS[name.removesuffix(INDUCTIVE)].has_test:
            continue
        spec = get_benchmark(name)
        layout = spec.find(folder)
        searched = [folder / layout.path for layout in spec.layouts if not layout.embedded]
        rows.append(BenchmarkListing(spec, searched, None if layout is None else folder / layout.path))
    return rows
