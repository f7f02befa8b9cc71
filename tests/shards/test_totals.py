"""The report of a run shows the numbers of all images in shards, and other programs query the shards."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from shard_helpers import rows_of

from promptcal import api
from promptcal.errors import RunError


@pytest.fixture(scope="module")
def predicted(run, pictures, tmp_path_factory):
    """The shards of 40 images, some of them in none of the categories."""
    folder = tmp_path_factory.mktemp("predicted")
    (folder / "photos").mkdir()
    for name, content in pictures.items():
        (folder / "photos" / f"{name}.png").write_bytes(content)
    api.predict_shards(
        run=run, source=folder / "photos", output=folder / "out", workers=1, shard_size=16, progress=False
    )
    return folder / "out"


def page_data(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1])


def test_numbers_of_all_images_in_the_report(run, predicted, tmp_path):
    assert page_data(api.make_report(run=run, output=tmp_path / "a.html", progress=False).path)["totals"] is None
    made = api.make_report(run=run, output=tmp_path / "b.html", shards=predicted, progress=False)
    totals = page_data(made.path)["totals"]
    table = rows_of(predicted).to_pandas()
    accepted = table[table.decision == "accepted"]
    assert totals["images"] == 40
    assert totals["none"] == 40 - len(accepted) > 0
    assert sum(totals["histogram"]) == len(accepted)
    expected = np.histogram(accepted.confidence, bins=20, range=(0, 1))[0]
    assert totals["histogram"] == expected.tolist()
    assert [category["name"] for category in totals["categories"]] == run.names
    for category in totals["categories"]:
        own = accepted[accepted.name == category["name"]]
        assert category["images"] == len(own)
        if len(own):
            assert category["confidence"] == pytest.approx(own.confidence.mean(), abs=1e-6)
        else:
            assert category["confidence"] is None
    stored = json.loads((predicted / "totals.json").read_text())
    assert stored["images"] == 40


def test_shards_without_categories(run, predicted, tmp_path):
    api.embed(source=predicted.parent / "photos", run=run, output=tmp_path / "out", workers=1, progress=False)
    with pytest.raises(RunError, match="has embeddings, but no categories"):
        api.make_report(run=run, output=tmp_path / "page.html", shards=tmp_path / "out", progress=False)
    with pytest.raises(RunError, match="are not finished"):
        api.make_report(run=run, output=tmp_path / "page.html", shards=tmp_path / "nothing", progress=False)


@pytest.fixture
def example(predicted, tmp_path, monkeypatch):
    """The first block of code in docs/guides/large.md in a language that has some word."""
    (tmp_path / "predictions").symlink_to(predicted)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "guides" / "large.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    return lambda language, word: next(code for kind, code in blocks if kind == language and word in code)


def test_query_of_the_documentation_with_pyarrow(predicted, example):
    found = {}
    exec(example("python", "pyarrow"), found)
    table = rows_of(predicted).to_pandas()
    assert len(found["doubtful"]) == (table.confidence < 0.5).sum() > 0
    assert found["doubtful"].column_names == ["id", "name", "confidence"]


def test_query_of_the_documentation_with_duckdb(predicted, example):
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install duckdb")
    table = rows_of(predicted).to_pandas()
    found = dict(duckdb.sql(example("sql", "DuckDB")).fetchall())
    assert found == table[table.decision == "accepted"].name.astype(str).value_counts().to_dict()
