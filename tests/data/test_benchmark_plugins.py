"""Benchmarks of other packages, and what listing benchmarks imports."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import promptcal
from promptcal.data.benchmarks import (
    BENCHMARKS,
    BenchmarkSpec,
    Layout,
    Split,
    benchmark_names,
    get_benchmark,
    list_benchmarks,
    load_benchmark,
)
from promptcal.data.benchmarks.dataset_files import class_folders
from promptcal.errors import ConfigError, DataError
from promptcal.runtime import plugins

MODULE = """
from promptcal.data.benchmarks import BenchmarkSpec, Layout
SHAPES = BenchmarkSpec(
    title="Shapes", n_images=9, n_classes=3, known_classes="shapes_benchmark:known", remedy="draw them",
    layouts=(Layout("shapes", "shapes_benchmark:read"),), preset="quick",
    download="shapes_benchmark:download")

def known():
    return [2, 0]

def read(folder, test):
    from test_benchmark_plugins import read_shapes
    return read_shapes(folder, test)

def download(root):
    from test_benchmark_plugins import write_shapes
    write_shapes(root)
"""


@pytest.fixture(autouse=True)
def separate_registry(monkeypatch):
    monkeypatch.setattr(BENCHMARKS, "_registered", dict(BENCHMARKS._registered))
    plugins.entry_points_of.cache_clear()
    yield
    plugins.entry_points_of.cache_clear()


def write_shapes(root):
    for part, count in (("train", 3), ("test", 1)):
        for c, name in enumerate(("circle", "line", "square")):
            (root / "shapes" / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (c, i, 0)).save(root / "shapes" / part / name / f"{i}.png")


def read_shapes(folder, test):
    names = ["circle", "line", "square"]
    return Split(*class_folders(folder, "test" if test else "train", names, allow_empty=False), names)


def install(monkeypatch, folder, entry_point):
    """A package with a benchmark, as pip would install it."""
    (folder / "shapes_benchmark.py").write_text(MODULE)
    info = folder / "shapes_benchmark-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes-benchmark\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[promptcal.benchmarks]\nshapes = {entry_point}\n")
    monkeypatch.syspath_prepend(folder)
    plugins.entry_points_of.cache_clear()


def test_an_installed_package_adds_a_benchmark(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path, "shapes_benchmark:SHAPES")
    monkeypatch.delitem(sys.modules, "shapes_benchmark", raising=False)
    assert {"shapes", "shapes-inductive"} <= set(benchmark_names())
    assert "shapes_benchmark" not in sys.modules  # listing names does not import it
    spec = get_benchmark("shapes-inductive")
    assert (spec.name, spec.inductive, spec.known, spec.preset) == ("shapes-inductive", True, [0, 2], "quick")
    with pytest.raises(DataError, match=r"Shapes is not in \S+ \(searched for shapes\); draw them"):
        load_benchmark("shapes", tmp_path / "data")
    data = load_benchmark("shapes-inductive", tmp_path / "data", download=True)
    assert data.truth() == ["circle"] * 3 + ["line"] * 3 + ["square"] * 3
    assert data.test_truth() == ["circle", "line", "square"]
    assert [np.asarray(data.train.image(i))[0, 0].tolist() for i in (0, 8)] == [[0, 0, 0], [2, 2, 0]]
    assert data.known.tolist() == [0, 2]
    assert data.labelled.sum() == 3  # half of the 6 images of known classes
    assert {data.class_names[c] for c in data.classes[data.labelled]} <= {"circle", "square"}
    assert {row.spec.name: row.found for row in list_benchmarks(tmp_path / "data")}["shapes"] is not None


@pytest.mark.parametrize(
    ("entry_point", "error", "message"),
    [
        ("shapes_benchmark:ABSENT", ConfigError, "the benchmark 'shapes' cannot be loaded .*; repair or uninstall"),
        ("shapes_benchmark:known", DataError, "the benchmark 'shapes' is a function; its package must give a Benchm"),
    ],
)
def test_a_faulty_package_is_named_and_the_other_benchmarks_work(tmp_path, monkeypatch, entry_point, error, message):
    install(monkeypatch, tmp_path, entry_point)
    assert "shapes" in benchmark_names()
    with pytest.raises(error, match=message):
        load_benchmark("shapes", tmp_path)
    assert len(load_benchmark("mini").train) == 1_500


def test_a_registered_benchmark_without_test_images_has_no_inductive_variant(tmp_path):
    write_shapes(tmp_path)
    layout = Layout("shapes", read_shapes, has_test=False)
    BENCHMARKS.register("shapes", BenchmarkSpec("Shapes", 9, 3, [1], (layout,), "draw them", labelled_share=1.0))
    data = load_benchmark("shapes", tmp_path)
    assert data.labels() == [None] * 3 + ["line"] * 3 + [None] * 3
    assert (data.test, data.validation) == (None, None)
    assert "shapes" in [row.spec.name for row in list_benchmarks(tmp_path)]
    assert "shapes-inductive" not in [row.spec.name for row in list_benchmarks(tmp_path)]
    with pytest.raises(DataError, match="Shapes has no test images; use the benchmark shapes"):
        get_benchmark("shapes-inductive")


def test_listing_benchmarks_imports_no_heavy_library():
    program = f"""
import sys, types
package = types.ModuleType("promptcal")  # without what `import promptcal` itself imports
package.__path__ = [{str(Path(promptcal.__file__).parent)!r}]
sys.modules["promptcal"] = package
from promptcal.data.benchmarks import benchmark_names, get_benchmark, list_benchmarks
assert "cub-inductive" in benchmark_names()
assert len(get_benchmark("cub").known) == 100
heavy = {{"torch", "torchvision", "timm", "sklearn", "scipy", "numpy", "PIL"}} & set(sys.modules)
assert not heavy, heavy
assert len(list_benchmarks("absent")) == len(benchmark_names())
heavy = {{"torch", "torchvision", "timm", "sklearn", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
