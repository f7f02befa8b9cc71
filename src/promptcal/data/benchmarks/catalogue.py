"""The benchmarks by name. Other packages add theirs with the entry-point group ``promptcal.benchmarks``."""

import os
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from promptcal.data.benchmarks.class_lists import published_known_classes
from promptcal.data.benchmarks.spec import DEVELOPMENT, INDUCTIVE, BenchmarkSpec, Layout
from promptcal.errors import DataError
from promptcal.runtime.plugins import Registry

ROOT_VARIABLE = "PROMPTCAL_DATA"


def _built_in(title: str, known_classes: Any, layouts: list[dict[str, Any]], **others: Any) -> BenchmarkSpec:
    """A benchmark of catalogue.yaml."""
    if isinstance(known_classes, int):
        known_classes = range(known_classes)
    elif isinstance(known_classes, str):
        known_classes = partial(published_known_classes, known_classes)
    stored = tuple(Layout(**layout) for layout in layouts)
    return BenchmarkSpec(title=title, known_classes=known_classes, layouts=stored, **others)


_CATALOGUE = yaml.safe_load((resources.files("promptcal.data.benchmarks") / "catalogue.yaml").read_text("utf-8"))
BENCHMARKS: Registry[BenchmarkSpec] = Registry(
    "benchmark", "promptcal.benchmarks", {name: _built_in(**entry) for name, entry in _CATALOGUE.items()}
)


@dataclass(frozen=True)
class BenchmarkListing:
    """A benchmark as `promptcal datasets` shows it; ``found`` is None if its data are absent."""

    spec: BenchmarkSpec
    searched: list[Path]
    found: Path | None


def benchmark_names() -> list[str]:
    """All names; ``NAME-inductive`` is the inductive variant of NAME. Imports no plug-in.

    ``NAME-dev``, the development split of NAME, is not listed.
    """
    names = BENCHMARKS.names()
    return [*names, *(f"{name}{INDUCTIVE}" for name in names)]


def get_benchmark(name: str) -> BenchmarkSpec:
    """The declaration of a benchmark, of its inductive variant or of its development split."""
    development, inductive = name.endswith(DEVELOPMENT), name.endswith(INDUCTIVE)
    base = name.removesuffix(DEVELOPMENT).removesuffix(INDUCTIVE)
    if base not in BENCHMARKS:
        names = ", ".join(benchmark_names())
        raise DataError(f"there is no benchmark {name!r}; choose one of {names} (or NAME{DEVELOPMENT})")
    spec = BENCHMARKS[base]
    if not isinstance(spec, BenchmarkSpec):
        raise DataError(f"the benchmark {base!r} is a {type(spec).__name__}; its package must give a BenchmarkSpec")
    if development and name != f"{base}{DEVELOPMENT}":
        raise DataError(f"a development split has no test images, so there is no {name}; use {base}{DEVELOPMENT}")
    if inductive and not spec.has_test:
        raise DataError(f"{spec.title} has no test images; use the benchmark {base}")
    return replace(spec, name=name, inductive=inductive, development=development)


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
