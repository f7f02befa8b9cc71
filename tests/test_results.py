"""The tables of docs/results.md are those that results/make.py makes of the runs kept in results/runs."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

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
    accuracies = [{"all": a, "known": 0.5, "new": 1.0} for a in (0.7, 0.8, 0.9)]
    assert make.in_words(accuracies) == "80.0 ± 10.0 / 50.0 ± 0.0 / 100.0 ± 0.0"
    assert make.in_words(accuracies[:1]) == "70.0 / 50.0 / 100.0"


def test_every_run_and_readout_that_is_kept_is_shown(make):
    """Nothing measured is left out of the page without a reason."""
    wanted = yaml.safe_load((ROOT / "results" / "tables.yaml").read_text(encoding="utf-8"))
    rows = [row for table in wanted["tables"].values() for row in table]
    rows += [row for table in wanted["readouts"].values() for row in table["rows"]]
    shown = {name for row in rows for name in row["runs"]} | {row["run"] for row in wanted["graphs"]["graph"]}
    assert {file.stem for file in (ROOT / "results" / "runs").glob("*.json")} == shown
    assert {file.stem for file in (ROOT / "results" / "readouts").glob("*.json")} <= shown


@pytest.mark.parametrize(
    ("kind", "of_what"),
    [
        ("graph", ["cifar100-promptcal"]),
        ("looks", ["cifar100-gcd", "cifar100-recommended"]),
        ("maps", "cifar100-recommended"),
    ],
)
def test_a_figure_is_made_of_what_is_kept(make, tmp_path, kind, of_what):
    make.DRAWN_BY[kind](of_what, tmp_path / "figure.png")
    picture = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB"))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50
