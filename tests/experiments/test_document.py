"""Documents: results page and experiment log are what `promptcal table` makes of the run records."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from scipy import stats

from promptcal.errors import ConfigError
from promptcal.experiments import record_tables
from promptcal.experiments.cells import record_names
from promptcal.experiments.document import draw_figure, load_document, write_document
from promptcal.experiments.run_records import RunRecord, benchmark_config, flatten
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import METHODS
from promptcal.pipeline.published import NO_DISTILLATION
from promptcal.run.results import Scores

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    ROOT / "results" / "results.yaml": ROOT / "docs" / "research" / "results.md",
    ROOT / "results" / "details.yaml": ROOT / "results" / "details.md",
    ROOT / "results" / "experiment-log.yaml": ROOT / "results" / "experiment-log.md",
}
RECOMMENDED = re.compile(r"(cifar100|cifar100-c50-l10|cub|mini)-recommended(-s\d+)?")


@pytest.fixture(scope="module")
def definition():
    """Of the experiment log, which has figures and tables of all kinds."""
    return load_document(str(ROOT / "results" / "experiment-log.yaml"))


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
    drawn = {file.name for file in tmp_path.glob("*.png")}
    assert drawn == set(load_document(str(definition_file)).figures)
    assert all((page.parent / name).is_file() for name in drawn)
    assert all(f"({name})" in made.read_text() and name in out.replace("\n", "") for name in drawn)


@pytest.mark.parametrize("definition_files", [("results.yaml", "details.yaml"), ("experiment-log.yaml",)])
def test_every_record_is_shown(definition_files):
    """Nothing that was measured is left out of the pages."""
    shown = set()
    for file in definition_files:
        definition = load_document(str(ROOT / "results" / file))
        shown |= {record for graph in definition.graph_tables.values() for record in graph.values()}
        for table in definition.tables.values():
            for row in table.rows:
                for column in table.columns:
                    shown |= set(record_names(row, column, table.record_folder))
    assert set(definition.all_records()) == shown


def test_every_study_of_pairs_is_shown(definition):
    studied = {Path(file).name for file in definition.pair_precision_tables["pair-precision"].values()}
    assert {file.name for file in (ROOT / "results" / "pair-precision").iterdir()} == studied


def test_runs_called_recommended_have_the_values_of_the_variant(definition):
    """The variant may change; runs with its former values must not keep the name."""
    runs = {}
    for document in (definition, load_document(str(ROOT / "results" / "results.yaml"))):
        runs |= {name: record for name, record in document.all_records().items() if RECOMMENDED.fullmatch(name)}
    assert len(runs) >= 10
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
    assert record_tables.noise_table({"CUB": "cub"}, runs).splitlines()[2].endswith("| 1 |")


def test_noise_is_between_scores_of_the_same_weights():
    def read(*values):
        return [scores(value, value / 2, 0.1) for value in values]

    records = [
        record(last=read(0.55)[0], readouts=readouts, settings=settings)
        for readouts, settings in (
            ({"student, cls": read(0.5, 0.6, 0.3)}, {}),
            ({"student, cls": read(0.5, 0.9)}, {}),
            ({"student, cls": read(0.4, 0.5), "teacher, cls": read(0.7)}, {"affinity.keep": "teacher"}),
            ({"student, cls": read(0.1)}, {}),
            ({}, {}),
        )
    ]
    repeated = read(0.5)[0].model_copy(update={"repeats": read(0.5, 0.7)})
    expected = ["birds", "40.0 / 20.0 / 0.0", "30.0 / 15.0 / 0.0", 3, "45.0 / 22.5 / 0.0", 4]
    assert record_tables.noise_row("birds", records) == expected
    table = record_tables.noise_table({"birds": "mini", "cars": "cars"}, [record(selected=repeated)])
    assert table.splitlines()[2:] == ["| birds | 20.0 / 10.0 / 0.0 | 20.0 / 10.0 / 0.0 | 1 |", "| cars |  |  | 0 |"]


def test_figures_show_the_records(definition):
    graph, validation, full, maps = (draw_figure(definition, figure) for figure in definition.figures.values())
    record = definition.record("cifar100-promptcal")
    epochs = [epoch for epoch in record.epochs if epoch["stage"] == "affinity"]
    for line, group in zip(graph.axes[1].lines, ("known", "new"), strict=False):
        assert line.get_xdata().tolist() == [epoch["epoch"] for epoch in epochs]
        assert line.get_ydata().tolist() == [epoch[f"cls/precision_{group}"] for epoch in epochs]
    one_stage, _, _, two_stages = validation.axes[0].lines
    assert one_stage.get_xdata().tolist() == two_stages.get_xdata().tolist() == [5, 10, 15, 20, 25, 30]
    values = [
        e["validation/known"] for e in definition.record("cifar100-recommended").epochs if "validation/known" in e
    ]
    assert two_stages.get_ydata().tolist() == values
    assert max(full.axes[0].lines[0].get_xdata()) == 300
    for axes in maps.axes:
        assert [len(points.get_offsets()) for points in axes.collections] == [120] * 20


@pytest.mark.parametrize("name", ["../figure.png", "folder/figure.png", "figure.py", "/figure.png"])
def test_a_figure_is_written_beside_the_document_only(name, tmp_path):
    file = tmp_path / "figures.yaml"
    file.write_text(yaml.safe_dump({"tables": {}, "figures": {name: {"kind": "graph"}}}))
    with pytest.raises(ConfigError, match="figure"):
        load_document(str(file))
