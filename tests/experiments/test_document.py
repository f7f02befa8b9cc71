"""Documents: results page and details are what `promptcal table` makes of the run records."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from scipy import stats

from promptcal.errors import ConfigError
from promptcal.experiments.cells import record_names
from promptcal.experiments.document import load_document, write_document
from promptcal.experiments.kmeans_noise import noise_row, noise_table
from promptcal.experiments.run_records import RunRecord, benchmark_config, flatten, read_record
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import METHODS
from promptcal.pipeline.published import NO_DISTILLATION
from promptcal.run.results import Scores

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    ROOT / "results" / "results.yaml": ROOT / "docs" / "research" / "results.md",
    ROOT / "results" / "details.yaml": ROOT / "results" / "details.md",
}
RECOMMENDED = re.compile(r"(cifar100|cub)-recommended-s\d+")


def scores(value, known=0.5, new=1.0):
    return Scores(all=value, known=known, new=new, separate_all=value, separate_known=known, separate_new=new)


def record(value=0.5, **changes):
    values = {"promptcal": "0", "benchmark": "mini", "method": "gcd", "seed": 0, "settings": {}, "config_hash": "0"}
    return RunRecord(**{**values, "seconds": 60.0, "selected": scores(value), "last": scores(value), **changes})


@pytest.mark.parametrize(("definition_file", "page"), DOCUMENTS.items())
def test_the_page_is_what_the_command_makes(definition_file, page, promptcal, tmp_path):
    made = tmp_path / page.name
    shutil.copy(page, made)
    code, out, err = promptcal("table", definition_file, "--document", made, "--output", tmp_path / "runs")
    assert (code, err) == (0, "")
    assert made.read_bytes() == page.read_bytes()
    assert page.name in out.replace("\n", "")


def test_every_record_is_shown():
    """Nothing that was measured is left out of the pages."""
    shown = set()
    for file in DOCUMENTS:
        definition = load_document(str(file))
        for table in definition.tables.values():
            for row in table.rows:
                for column in table.columns:
                    shown |= set(record_names(row, column, table.record_folder))
    assert set(definition.all_records()) == shown


def test_runs_called_recommended_have_the_values_of_the_variant():
    """The variant may change; runs with its former values must not keep the name."""
    records = load_document(str(ROOT / "results" / "results.yaml")).all_records()
    runs = {name: record for name, record in records.items() if RECOMMENDED.fullmatch(name)}
    assert len(runs) == 6
    for name, kept in runs.items():
        preset = flatten(benchmark_config(kept.benchmark, "promptcal").model_dump())
        for key, value in flatten(METHODS["promptcal"].variants["recommended"]).items():
            assert kept.settings.get(key, preset[key]) == value, (name, key)


def test_rows_without_records_yet_say_so_and_others_are_compared(tmp_path):
    (tmp_path / "runs").mkdir()
    table = {
        "parts": ["all", "nmi"],
        "reference": "ours",
        "columns": [{"title": "Mini"}],
        "details": ["seeds"],
        "rows": [
            {"label": "ours", "records": ["ours-s*"]},
            {"label": "theirs", "records": ["theirs-s*"]},
            {"label": "later", "records": ["later-s*"]},
        ],
    }
    for name, values in (("ours", (0.7, 0.8, 0.9)), ("theirs", (0.5, 0.61, 0.69))):
        for seed, value in enumerate(values):
            record(value, seed=seed).write(tmp_path / "runs" / f"{name}-s{seed}.json")
    file, page = tmp_path / "mine.yaml", tmp_path / "page.md"
    file.write_text(yaml.safe_dump(table))
    page.write_text("<!-- table: mine -->\n<!-- end -->")
    assert write_document(TableRequest(name=str(file)), page).problems == {}
    low, high = stats.ttest_rel([50, 61, 69], [70, 80, 90]).confidence_interval(0.95)
    assert page.read_text().splitlines()[1:-1] == [
        "|  | Mini | difference to ours | seeds |",
        "|---|---|---|---|",
        "| ours | 80.0 ± 24.8 |  | 3 |",  # records without NMI
        f"| theirs | **60.0 ± 23.7** | -20.0 ± {(high - low) / 2:.1f} | 3 |",
        "| later | not measured |  | 0 |",
    ]


def test_a_document_of_ones_own(tmp_path):
    (tmp_path / "runs").mkdir()
    stage = {"best_epoch": 2, "epochs": 2, "accuracy": scores(0.4)}
    epochs = [{"stage": "gcd", "epoch": 1, "seconds": 60.0}, {"stage": "gcd", "epoch": 2, "seconds": 120.0}]
    for seed, value in enumerate((0.7, 0.8, 0.9)):
        kept = record(value, seed=seed, last=scores(0.6), seconds=240.0, stages={"gcd": stage}, epochs=epochs)
        kept.write(tmp_path / "runs" / f"run{seed}.json")
        assert RunRecord.read(tmp_path / "runs" / f"run{seed}.json") == kept
    part = record(0.5, seconds=150.0, baselines={"kmeans": scores(0.3)}, stages={"gcd": stage}, epochs=epochs)
    part.write(tmp_path / "runs" / "part.json")
    table = {
        "columns": [{"title": "selected"}, {"title": "last", "epoch": "last"}],
        "details": ["seeds", "epochs", "minutes", "config"],
        "rows": [
            {"label": "three", "records": ["run0", "run1", "run2"]},
            {"label": "stage", "records": ["run0"], "score": "gcd"},
            {"label": "part", "records": {"last": ["part"]}},
            {"label": "k-means", "records": ["part"], "score": "kmeans"},
        ],
    }
    file, page = tmp_path / "my-table.yaml", tmp_path / "page.md"
    file.write_text(yaml.safe_dump(table))
    page.write_text("before\n<!-- table: my-table -->\nold\n<!-- end -->\nafter\n")
    request = TableRequest(name=str(file), output=tmp_path / "out")
    assert write_document(request, page).problems == {}
    assert page.read_text().splitlines() == [
        "before",
        "<!-- table: my-table -->",
        "|  | selected | last | seeds | epochs | minutes | config |",
        "|---|---|---|---|---|---|---|",
        "| three | 80.0 ± 24.8 / 50.0 ± 0.0 / 100.0 ± 0.0 | 60.0 ± 0.0 / 50.0 ± 0.0 / 100.0 ± 0.0 | 3 | 2 | 4.0 "
        "| `0`, `0`, `0` |",
        "| stage | 40.0 / 50.0 / 100.0 | 40.0 / 50.0 / 100.0 | 1 | 2 |  | `0` |",
        "| part |  | 50.0 / 50.0 / 100.0 | 1 | 2 |  | `0` |",
        "| k-means | 30.0 / 50.0 / 100.0 |  | 1 |  |  |  |",
        "<!-- end -->",
        "after",
    ]
    for text, problem in (
        ("no block", "has 0 blocks for the table 'my-table'; add one"),
        (page.read_text() + "<!-- table: other -->\n<!-- end -->", "has a block for 'other', which is no table"),
    ):
        page.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            write_document(request, page)
        assert page.read_text() == text
    table["rows"][1]["score"] = "warmup"
    file.write_text(yaml.safe_dump(table))
    page.write_text("<!-- table: my-table -->\n<!-- end -->")
    (problem,) = write_document(request, page).problems.values()
    assert "this run of gcd has no score 'warmup'; it has final, gcd" in problem.reason


def test_stored_records_say_that_the_distillation_is_missing(tmp_path):
    """By their settings, or by the conditions that a run of the published protocol states; not for frozen features."""
    missing, given = {"method": "promptcal"}, {"method": "promptcal", "settings": {"data.generic_images": "given"}}
    stored = {
        "gcd": {"baselines": {"kmeans": scores(0.3)}},
        "missing": {**missing, "baselines": {"kmeans": scores(0.3)}},
        "given": given,
        "published": {"method": "promptcal", "unmet_conditions": []},
        "published-missing": {"method": "promptcal", "unmet_conditions": [NO_DISTILLATION]},
        "own": {"method": "a method that is not installed"},
    }
    (tmp_path / "runs").mkdir()
    for name, changes in stored.items():
        record(**changes).write(tmp_path / "runs" / f"{name}.json")
    rows = [{"label": name, "records": [name]} for name in stored]
    rows.append({"label": "k-means", "records": ["missing"], "score": "kmeans"})
    file, page = tmp_path / "mine.yaml", tmp_path / "page.md"

    def note(rows):
        file.write_text(yaml.safe_dump({"columns": [{"title": "Mini"}], "rows": rows}))
        page.write_text("<!-- table: mine -->\n<!-- end -->")
        write_document(TableRequest(name=str(file)), page)
        return [line for line in page.read_text().splitlines() if "distillation" in line]

    assert note(rows) == [f"missing, published-missing: {NO_DISTILLATION}."]
    many = [{"label": f"row {i}", "records": ["missing"]} for i in range(5)]
    assert note([rows[0], *many, rows[-1]]) == [f"All rows of PromptCAL: {NO_DISTILLATION}."]
    assert note([rows[2], *many]) == [f"row 0, row 1, row 2, row 3, row 4: {NO_DISTILLATION}."]


def test_development_runs_are_not_in_the_noise_table():
    repeats = [scores(0.5), scores(0.7)]
    runs = [record(benchmark=name, selected=Scores(**scores(0.5).model_dump(exclude={"repeats"}), repeats=repeats))
            for name in ("cub", "cub-dev", "cub-dev")]  # fmt: skip
    assert noise_table({"CUB": "cub"}, runs).splitlines()[2].endswith("| 1 |")


def test_noise_is_between_scores_of_the_same_weights():
    def repeated(*values):
        first, *_ = repeats = [scores(value, value / 2, 0.1) for value in values]
        return record(selected=first.model_copy(update={"repeats": repeats}))

    records = [repeated(0.5, 0.6, 0.3), repeated(0.5, 0.9), repeated(0.4, 0.5), repeated(0.1), record()]
    assert noise_row("birds", records) == ["birds", "40.0 / 20.0 / 0.0", "30.0 / 15.0 / 0.0", 3]
    table = noise_table({"birds": "mini", "cars": "cars"}, [repeated(0.5, 0.7)])
    assert table.splitlines()[2:] == ["| birds | 20.0 / 10.0 / 0.0 | 20.0 / 10.0 / 0.0 | 1 |", "| cars |  |  | 0 |"]


def test_records_of_earlier_versions_are_read(tmp_path):
    """Those of 0.1 have read-outs of the last weights, which nothing shows any more."""
    kept = read_record(ROOT / "results" / "log-runs", "cub-one-block")
    assert kept.promptcal == "0.1.0"
    kept.write(tmp_path / "again.json")
    assert "readouts" not in (tmp_path / "again.json").read_text()
    assert RunRecord.read(tmp_path / "again.json") == kept
