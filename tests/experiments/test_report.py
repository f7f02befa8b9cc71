"""Figures of runs with chosen results: means, deviations, differences to the published ones, and how they are shown."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from promptcal import api
from promptcal.experiments import plot
from promptcal.experiments.cells import Statistic, jobs_of, plan
from promptcal.experiments.definition import load_table
from promptcal.experiments.jobs import FitJob
from promptcal.experiments.run_records import benchmark_config
from promptcal.experiments.table_report import show
from promptcal.experiments.table_request import TableRequest
from promptcal.experiments.tables import make_table
from promptcal.run.directory import RunDirectory
from promptcal.run.info import RunInfo
from promptcal.run.results import RunResults, Scores, StageResult
from promptcal.runtime import files

PARTS = ("all", "known", "new", "separate_all", "separate_known", "separate_new")


def scores(share):
    return Scores(**dict.fromkeys(PARTS, share))


def finish(output, job, selected, last, seconds=10.0):
    """A finished run with these shares as its results."""
    directory = RunDirectory(output / job.name)
    directory.path.mkdir(parents=True)
    config = benchmark_config(job.benchmark, job.method, job.overrides)
    files.write_text(directory.config_file, config.to_yaml())
    warmup = StageResult(best_epoch=3, epochs=5, accuracy=scores(selected / 2))
    RunResults(
        method=job.method,
        stages={"warmup": warmup},
        selected=scores(selected),
        last=scores(last),
        seconds=seconds,
    ).write(directory.results_file)
    RunInfo(status="finished", categories=["new-1"]).write(directory.info_file)


@pytest.fixture
def where(tmp_path):
    return TableRequest(output=tmp_path, root=tmp_path / "no data", run=False)


@pytest.fixture
def three_seeds(where):
    """The last row of the ablation on CUB with three seeds, the row before it with two."""
    cells = plan(load_table("semiag-ablation"), TableRequest())
    by_row = {cell.row.label: cell.jobs for cell in cells}
    for job, selected, last in zip(by_row["(5) PromptCAL"], (0.60, 0.62, 0.67), (0.5, 0.6, 0.61), strict=True):
        finish(where.output, job, selected, last, seconds=100.0 * (job.seed + 1))
    for job in by_row["(4) without affinity propagation"][:2]:
        finish(where.output, job, 0.5, 0.5)
    return where


def csv_lines(path):
    return {(x["row"], x["dataset"]): x for x in csv.DictReader(io.StringIO(path.read_text()))}


def test_mean_deviation_and_difference(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    line = csv_lines(made.csv)["(5) PromptCAL", "CUB-200"]
    assert (line["seeds"], line["n_seeds"], line["status"], line["seconds"]) == ("0 1 2", "3", "finished", "200")
    assert float(line["all_selected_mean"]) == pytest.approx(np.mean([60, 62, 67]))
    assert float(line["all_selected_std"]) == pytest.approx(np.std([60, 62, 67], ddof=1))
    assert float(line["all_last_mean"]) == pytest.approx(np.mean([50, 60, 61]))
    assert float(line["all_last_std"]) == pytest.approx(np.std([50, 60, 61], ddof=1))
    assert line["all_published"] == "62.9"
    assert float(line["all_difference"]) == pytest.approx(63 - 62.9)
    assert float(line["known_difference"]) == pytest.approx(63 - 64.4)


def test_markdown_has_both_and_the_difference(three_seeds):
    text = make_table(replace(three_seeds, name="semiag-ablation")).markdown.read_text()
    measured = "| (5) PromptCAL | 63.0 ± 3.6 | 63.0 ± 3.6 | 63.0 ± 3.6 |"
    assert f"{measured} 62.9 / 64.4 / 62.1 | +0.1 / -1.4 / +0.9 | 3 of 3 | 200 |" in text
    assert "| (1) plain KNN with SemiPriori | data absent |  |  | 60.1 / 70.1 / 55.1 |  | 0 of 3 |  |" in text
    assert "over the seeds 0, 1, 2" in text


def test_the_last_epoch_is_shown_where_it_is_asked_for(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation", epoch="last"))
    assert made.markdown.name == "semiag-ablation-last.md"
    assert "| (5) PromptCAL | 57.0 ± 6.1 |" in made.markdown.read_text()
    assert "weights of the last epoch" in made.markdown.read_text()
    assert float(csv_lines(made.csv)["(5) PromptCAL", "CUB-200"]["all_selected_mean"]) == pytest.approx(63)


def test_a_note_names_the_rows_that_a_setting_does_not_apply_to(where):
    text = make_table(replace(where, name="herbarium", overrides=["affinity.k=7"])).markdown.read_text()
    rows = "k-means, RankStats+, UNO+, GCD, ORCA (ViT), SimGCD"
    assert f"- affinity.k=7 does not apply to {rows}: their method has no such setting." in text


def test_seeds_that_are_missing_are_not_hidden(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    line = csv_lines(made.csv)["(4) without affinity propagation", "CUB-200"]
    assert (line["seeds"], line["status"]) == ("0 1", "data absent (2 of 3 seeds)")
    assert not made.summary.complete
    assert "| 2 of 3 |" in made.markdown.read_text()


def test_one_seed_has_no_deviation(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation", seeds=[2]))
    line = csv_lines(made.csv)["(5) PromptCAL", "CUB-200"]
    assert (line["all_selected_mean"], line["all_selected_std"]) == ("67", "")
    assert "| (5) PromptCAL | 67.0 | 67.0 | 67.0 |" in made.markdown.read_text()
    assert np.isnan(Statistic.of([3.0]).std)


def test_stage_1_is_read_from_the_same_run(where):
    jobs = jobs_of(plan(load_table("supervised-prompts"), TableRequest(seeds=[0])))
    (default,) = [j for j in jobs if j.name.startswith("cub-promptcal-seed0")]
    finish(where.output, default, 0.6, 0.5)
    lines = csv_lines(make_table(replace(where, name="supervised-prompts", seeds=[0])).csv)
    assert float(lines["2 of 5 supervised", "Stage 1"]["all_selected_mean"]) == pytest.approx(30)
    assert lines["2 of 5 supervised", "Stage 1"]["all_last_mean"] == ""  # epoch 3 was kept, the last not scored
    assert float(lines["2 of 5 supervised", "Stage 2"]["all_selected_mean"]) == pytest.approx(60)
    assert ("GCD", "Stage 2") not in lines


def test_reports_are_the_same_bytes_again(three_seeds):
    first = make_table(replace(three_seeds, name="semiag-ablation"))
    before = {file: file.read_bytes() for file in (first.csv, first.runs_csv, first.markdown)}
    make_table(replace(three_seeds, name="semiag-ablation"))
    assert before == {file: file.read_bytes() for file in before}
    assert str(three_seeds.output) not in first.csv.read_text()


def test_a_run_of_an_older_preset_is_not_taken(three_seeds):
    (run,) = three_seeds.output.glob("cub-promptcal-seed0-*")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("quantile: 0.8", "quantile: 0.7"))
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    trouble = made.summary.problems[run.name]
    assert trouble.name == "damaged"
    assert "was made with affinity.quantile=0.7, which is 0.8 now; delete its folder" in trouble.reason
    assert csv_lines(made.csv)["(5) PromptCAL", "CUB-200"]["seeds"] == "1 2"


def test_the_corrected_column_says_what_the_paper_prints(where):
    text = make_table(replace(where, name="fine-grained", seeds=[0])).markdown.read_text()
    aircraft = text.split("## Aircraft")[1]
    assert "| k-means | data absent |  |  | 16.0 / 14.4 / 16.8 |" in aircraft
    assert "- k-means, Aircraft: the paper prints 12.9 / 12.9 / 12.8." in text
    assert "| SimGCD | data absent |  |  | 54.3 |" in aircraft


@pytest.mark.parametrize("name", ["inductive", "efficiency", "generic"])
def test_the_terminal_has_room_for_every_table(name, where):
    made = make_table(replace(where, name=name))
    for cell in made.summary.cells:
        for part in made.summary.table.parts:
            published = cell.published.get(part, 86.0)
            cell.shown[part] = Statistic(published, published / 9)
            if part in cell.published:
                cell.difference[part] = -99.9
    console = Console(width=80, file=io.StringIO(), record=True)
    show(made.summary, console)
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_the_terminal_has_both_figures(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    console = Console(width=80, file=io.StringIO(), record=True)
    show(made.summary, console)
    text = console.export_text()
    rows = text.splitlines()
    measured = next(i for i, line in enumerate(rows) if "(5) PromptCAL" in line)
    assert "63.0 ± 3.6" in rows[measured]
    assert "62.9 +0.1" in rows[measured + 1]


def test_names_do_not_depend_on_how_a_default_is_written():
    plain = FitJob("cars", "promptcal", 0)
    assert plain.name == FitJob("cars", "promptcal", 0, ("loss.beta=0.6", "device=cpu", "data.store=stream")).name
    other = FitJob("cars", "promptcal", 0, ("loss.beta=0.4",))
    assert other.name != plain.name
    assert other.name.startswith("cars-promptcal-loss.beta=0.4-seed0-")
    assert FitJob("cars", "promptcal", 1, ("loss.beta=0.4",)).name.rpartition("-")[2] == other.name.rpartition("-")[2]


def test_weights_lie_below_the_root_and_the_root_is_not_part_of_the_name(tmp_path):
    table = load_table("pretraining")
    job = next(c.jobs[0] for c in plan(table, TableRequest(seeds=[0])) if "iBOT" in c.row.label)
    assert "model.weights=ROOT_ibot_vitb16.pth" in job.name
    assert job._overrides(str(tmp_path)) == (f"model.weights={tmp_path}/ibot_vitb16.pth",)


def test_bars_show_means_deviations_and_published_marks(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    figure = plot.draw(made.summary)
    (panel,) = figure.axes
    widths = sorted(round(patch.get_width(), 6) for patch in panel.patches)
    assert widths == [50.0] * 3 + [63.0] * 3
    marks = np.concatenate([c.get_offsets() for c in panel.collections if hasattr(c, "get_offsets")])
    published = [f for row in made.summary.table.rows for f in row.published["CUB-200"]]
    assert set(published) <= {round(float(x), 6) for x in marks[:, 0]}
    assert [label.get_text() for label in panel.get_yticklabels()] == [r.label for r in made.summary.table.rows]


def test_the_verb_makes_the_same_report(three_seeds):
    made = api.table(
        name="semiag-ablation", output=three_seeds.output, root=three_seeds.root, run=False, progress=False
    )
    assert "63.0 ± 3.6" in made.markdown.read_text()
