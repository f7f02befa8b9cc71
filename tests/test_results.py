"""The tables of docs/results.md are those that results/make.py makes of the runs kept in results/runs."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", ROOT / "results" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make):
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert make.filled(page, make.tables()) == page


def test_several_seeds_are_a_mean_and_a_deviation(make):
    runs = [{"accuracy": {"last": {"all": a, "known": 0.5, "new": 1.0}}} for a in (0.7, 0.8, 0.9)]
    assert make.accuracies(runs, "last") == "80.0 ± 10.0 / 50.0 ± 0.0 / 100.0 ± 0.0"
    assert make.accuracies(runs[:1], "last") == "70.0 / 50.0 / 100.0"


def test_a_figure_is_made_of_the_records(make, tmp_path):
    make.draw_graph_statistics(["cifar100-promptcal"], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
