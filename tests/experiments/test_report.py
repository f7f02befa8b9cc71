"""Values of runs with chosen results: means, intervals, differences to other rows and to published values."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from matplotlib.container import ErrorbarContainer
from rich.console import Console
from scipy import stats

from promptcal import api
from promptcal.experiments import jobs, plot
from promptcal.experiments.cells import jobs_of, plan
from promptcal.experiments.definition import load_table
from promptcal.experiments.document import write_document
from promptcal.experiments.intervals import Statistic, paired_difference
from promptcal.experiments.jobs import FitJob
from promptcal.experiments.table_report import show
from promptcal.experiments.table_request import TableRequest
from promptcal.experiments.tables import make_table
from promptcal.pipeline.published import NO_DISTILLATION
from promptcal.run.directory import RunDirectory
from promptcal.run.info import RunInfo
from promptcal.run.results import RunResults, Scores, StageResult
from promptcal.runtime import files

PARTS = ("all", "known", "new", "separate_all", "separate_known", "separate_new", "nmi", "ari")
FULL, WITHOUT = "(5) PromptCAL", "(4) without affinity propagation"


def scores(share):
    return Scores(**dict.fromkeys(PARTS, share))


def finish(output, job, selected, last, seconds=10.0, data_difference=None):
    """A finished run with these shares as its results."""
    directory = RunDirectory(output / job.name)
    directory.path.mkdir(parents=True)
    files.write_text(directory.config_file, job._config().to_yaml())
    warmup = StageResult(best_epoch=3, epochs=5, accuracy=scores(selected / 2))
    RunResults(
        method=job.method,
        stages={"warmup": warmup},
        selected=scores(selected),
        last=scores(last),
        seconds=seconds,
    ).write(directory.results_file)
    info = RunInfo(status="finished", categories=["new-1"], data_difference=data_difference)
    info.write(directory.info_file)


@pytest.fixture
def where(tmp_path):
    return TableRequest(output=tmp_path, root=tmp_path / "no data", run=False)


@pytest.fixture
def three_seeds(where):
    """The last two rows of the ablation on CUB: the reference with three seeds, the other with two of them."""
    cells = plan(load_table("semiag-ablation"), TableRequest())
    by_row = {cell.row.label: cell.jobs for cell in cells}
    for job, selected, last in zip(by_row["(5) PromptCAL"], (0.60, 0.62, 0.67), (0.5, 0.6, 0.61), strict=True):
        finish(where.output, job, selected, last, seconds=100.0 * (job.seed + 1))
    for job, selected in zip(by_row[WITHOUT][:2], (0.50, 0.53), strict=True):
        finish(where.output, job, selected, 0.5)
    return where


def csv_lines(path):
    return {(x["row"], x["dataset"]): x for x in csv.DictReader(io.StringIO(path.read_text()))}


@pytest.fixture
def as_published(monkeypatch):
    """Runs count as made under the conditions of the published values."""
    monkeypatch.setattr(jobs, "unmet_conditions", lambda config, preset, changes: [])


def interval(result):
    """Mean and half width of the 95 % interval of a t-test of SciPy."""
    low, high = result.confidence_interval(0.95)
    return (low + high) / 2, (high - low) / 2


def test_mean_and_interval_are_those_of_scipy(three_seeds):
    line = csv_lines(make_table(replace(three_seeds, name="semiag-ablation")).csv)[FULL, "CUB-200"]
    assert (line["seeds"], line["n_seeds"], line["status"], line["seconds"]) == ("0 1 2", "3", "finished", "200")
    for epoch, values in (("selected", [60, 62, 67]), ("last", [50, 60, 61])):
        mean, half_width = interval(stats.ttest_1samp(values, 0))
        for part in ("all", "nmi"):
            assert float(line[f"{part}_{epoch}_mean"]) == pytest.approx(mean)
            assert float(line[f"{part}_{epoch}_ci95"]) == pytest.approx(half_width)
            assert float(line[f"{part}_{epoch}_std"]) == pytest.approx(np.std(values, ddof=1))


def test_differences_to_the_reference_are_paired_by_seed(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    lines = csv_lines(made.csv)
    line = lines[WITHOUT, "CUB-200"]
    mean, half_width = interval(stats.ttest_rel([50, 53], [60, 62]))  # the seeds that both rows have
    assert line["reference"] == FULL
    assert float(line["all_selected_to_reference_mean"]) == pytest.approx(mean)
    assert float(line["all_selected_to_reference_ci95"]) == pytest.approx(half_width)
    assert float(line["new_last_to_reference_mean"]) == pytest.approx(-5)
    assert lines[FULL, "CUB-200"]["all_selected_to_reference_mean"] == ""
    assert f"| -9.5 ± {half_width:.1f} / " in made.markdown.read_text()
    other = make_table(replace(three_seeds, name="semiag-ablation", reference="(4)"))
    line = csv_lines(other.csv)[FULL, "CUB-200"]
    assert float(line["all_selected_to_reference_mean"]) == pytest.approx(-mean)
    assert f"Differences to {WITHOUT} are paired by seed." in other.markdown.read_text()


@pytest.mark.parametrize(
    ("values", "reference", "is_bold"),
    [
        ((0.50, 0.53, 0.57), (0.60, 0.62, 0.67), True),  # -10, -9, -10
        ((0.50, 0.63, 0.57), (0.60, 0.62, 0.67), False),  # -10, 1, -10
        ((0.50,), (0.60,), False),  # one seed has no interval
    ],
)
def test_bold_only_if_the_interval_excludes_zero(where, values, reference, is_bold):
    by_row = {cell.row.label: cell.jobs for cell in plan(load_table("semiag-ablation"), TableRequest())}
    for label, shares in ((FULL, reference), (WITHOUT, values)):
        for job, share in zip(by_row[label], shares, strict=False):
            finish(where.output, job, share, share)
    made = make_table(replace(where, name="semiag-ablation", seeds=range(len(values))))
    if len(values) > 1:
        low, high = stats.ttest_rel(values, reference).confidence_interval(0.95)
        assert is_bold == (not low <= 0 <= high)
    row = next(line for line in made.markdown.read_text().splitlines() if line.startswith(f"| {WITHOUT}"))
    assert row.count("**") == 2 * 5 * is_bold  # All, Known, New, NMI, ARI
    console = Console(width=80, file=io.StringIO(), record=True, force_terminal=True)
    show(made.summary, console)
    bold = re.findall(r"\x1b\[1m([^\x1b]+)", console.export_text(styles=True))
    assert sum(f"{100 * np.mean(values):.1f}" in text for text in bold) == 3 * is_bold


def test_an_interval_needs_two_values_and_common_seeds():
    assert np.isnan(Statistic.of([3.0]).ci95)
    assert not Statistic.of([3.0]).excludes_zero
    assert Statistic.of([1.0, 1.0]).excludes_zero
    assert paired_difference({0: 1.0, 2: 5.0}, {2: 2.0, 3: 1.0}) == Statistic.of([3.0])
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_there_is_a_difference_to_published_values_if_their_conditions_are_met(three_seeds, as_published):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    line = csv_lines(made.csv)[FULL, "CUB-200"]
    assert line["all_published"] == "62.9"
    assert float(line["all_difference"]) == pytest.approx(63 - 62.9)
    assert float(line["known_difference"]) == pytest.approx(63 - 64.4)
    text = made.markdown.read_text()
    values = " | ".join(["63.0 ± 9.0"] * 5)
    assert f"| {FULL} | {values} |  | 62.9 / 64.4 / 62.1 | +0.1 / -1.4 / +0.9 | 3 of 3 | 200 |" in text
    absent = "| (1) plain KNN with SemiPriori | data absent |  |  |  |  |  | 60.1 / 70.1 / 55.1 |  | 0 of 3 |  |"
    assert absent in text
    assert "Mean and 95 % interval over the seeds 0, 1, 2, 3 k-means repeats each." in text
    assert "no difference" not in text.lower()


def test_without_them_there_is_none_and_a_note_says_why(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    line = csv_lines(made.csv)[FULL, "CUB-200"]
    assert (line["all_published"], line["all_difference"]) == ("62.9", "")
    reasons = "the protocol is not the published one (--protocol published); " + NO_DISTILLATION
    assert line["not_comparable"] == reasons
    text = made.markdown.read_text()
    assert f"- No difference to the published values is shown: {reasons}.\n" in text
    assert "difference to the paper" not in text


def test_the_last_epoch_is_not_compared_with_values_of_the_selected_one(three_seeds, as_published):
    made = make_table(replace(three_seeds, name="semiag-ablation", epoch="last"))
    line = csv_lines(made.csv)[FULL, "CUB-200"]
    assert (line["all_last_mean"], line["all_difference"]) == ("57", "")
    assert line["not_comparable"] == "the values are of the last epoch, not of the selected one"
    text = made.markdown.read_text()
    assert f"- {WITHOUT}, {FULL}: no difference to the published values is shown: {line['not_comparable']}." in text


def test_the_last_epoch_is_compared_if_it_is_the_selected_one(where, as_published):
    by_row = {cell.row.label: cell.jobs for cell in plan(load_table("semiag-ablation"), TableRequest())}
    finish(where.output, by_row[FULL][0], 0.6, 0.6)
    made = make_table(replace(where, name="semiag-ablation", epoch="last", seeds=[0]))
    assert float(csv_lines(made.csv)[FULL, "CUB-200"]["all_difference"]) == pytest.approx(60 - 62.9)


def test_other_images_than_the_published_ones_are_not_compared(where, as_published):
    by_row = {cell.row.label: cell.jobs for cell in plan(load_table("semiag-ablation"), TableRequest())}
    reason = "cub_train.tar has the images in a different order than the original, so different images are labelled"
    finish(where.output, by_row[FULL][0], 0.6, 0.6, data_difference=reason)
    made = make_table(replace(where, name="semiag-ablation", seeds=[0]))
    line = csv_lines(made.csv)[FULL, "CUB-200"]
    assert (line["all_difference"], line["not_comparable"]) == ("", reason)
    assert f"{FULL}: no difference to the published values is shown: {reason}." in made.markdown.read_text()


def test_the_note_names_the_rows_if_they_have_other_reasons(where, tmp_path):
    table = {
        "columns": [{"title": "CUB", "benchmark": "cub"}],
        "rows": [
            {"label": "theirs", "method": "gcd", "published": {"CUB": [51.3, 56.6, 48.7]}},
            {"label": "two", "method": "promptcal", "published": {"CUB": [1, 2, 3]}},
            {"label": "one", "method": "promptcal", "overrides": ["affinity.k=7"], "published": {"CUB": [1, 2, 3]}},
        ],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(table))
    request = replace(where, name=str(tmp_path / "mine.yaml"), protocol="published")
    text = make_table(request).markdown.read_text()
    reason = (
        "no difference to the published values is shown: the distillation of stage 1 is missing (--generic-images)."
    )
    assert f"- two, one: {reason}" in text
    assert "theirs:" not in text
    changed = make_table(replace(request, overrides=("affinity.quantile=0.5",), generic_images=tmp_path))
    assert (
        "is shown: affinity.quantile is 0.5, not 0.8." in changed.markdown.read_text()
    )  # the row's own K is published


def test_every_table_says_that_the_distillation_is_missing(where, tmp_path):
    """Also without published values, at mini scale, by the default protocol, and in a document."""
    row = {"label": "mine", "method": "promptcal", "published": {"CUB": [1, 2, 3]}}
    rows = [{"label": "GCD", "method": "gcd"}, row, {**row, "label": "other", "published": {}}]
    file, page = tmp_path / "mine.yaml", tmp_path / "page.md"
    file.write_text(yaml.safe_dump({"columns": [{"title": "CUB", "benchmark": "cub"}], "rows": rows}))
    request = replace(where, name=str(file), protocol="published")
    missing = "the distillation of stage 1 is missing (--generic-images)."
    text = make_table(request).markdown.read_text()
    assert f"- mine: no difference to the published values is shown: {missing}\n- other: {missing}\n" in text
    assert "\n- Published protocol: trained on all labels, epoch selected by each method's own rule.\n" in text
    assert f"- mine, other: {missing}\n" in make_table(replace(request, scale="mini")).markdown.read_text()
    page.write_text("<!-- table: mine -->\n<!-- end -->\n")
    write_document(request, page)
    assert f"|\n\nmine, other: {missing}\n<!-- end -->" in page.read_text()
    default = replace(request, protocol="default")
    text = make_table(default).markdown.read_text()
    assert f"(--protocol published); {missing}\n- other: {missing}\n" in text
    assert "Published protocol" not in text
    assert f"- mine, other: {missing}\n" in make_table(replace(default, scale="mini")).markdown.read_text()
    write_document(default, page)
    assert f"|\n\nmine, other: {missing}\n<!-- end -->" in page.read_text()
    for protocol in ("published", "default"):
        with_images = replace(request, protocol=protocol, generic_images=tmp_path)
        write_document(with_images, page)
        assert "distillation" not in make_table(with_images).markdown.read_text() + page.read_text()


@pytest.mark.parametrize("name", ["prompt-ablation", "supervised-prompts"])
def test_tables_that_isolate_the_prompts_say_that_the_epochs_are_selected_differently(name, where):
    sentence = "GCD keeps the last epoch and PromptCAL one that is selected on test images"
    assert sentence in make_table(replace(where, name=name, protocol="published", seeds=[0])).markdown.read_text()


def test_the_last_epoch_is_shown_where_it_is_asked_for(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation", epoch="last"))
    assert made.markdown.name == "semiag-ablation-last.md"
    assert "| (5) PromptCAL | 57.0 ± 15.1 |" in made.markdown.read_text()
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
    assert "| 2 of 3 |" in made.markdown.read_text()


def test_one_seed_has_no_interval(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation", seeds=[2]))
    line = csv_lines(made.csv)["(5) PromptCAL", "CUB-200"]
    assert (line["all_selected_mean"], line["all_selected_std"], line["all_selected_ci95"]) == ("67", "", "")
    assert "| (5) PromptCAL | 67.0 | 67.0 | 67.0 |" in made.markdown.read_text()
    assert "One seed (2), 3 k-means repeats each, so there is no interval." in made.markdown.read_text()


def test_stage_1_is_read_from_the_same_run(where):
    planned = jobs_of(plan(load_table("supervised-prompts"), TableRequest(seeds=[0])))
    (default,) = [j for j in planned if j.name.startswith("cub-promptcal-seed0")]
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
    assert "| k-means | data absent |  |  |  |  |  | 16.0 / 14.4 / 16.8 |" in aircraft
    assert "- k-means, Aircraft: the paper prints 12.9 / 12.9 / 12.8." in text
    assert "| SimGCD | data absent |  |  |  |  |  | 54.3 |" in aircraft


@pytest.mark.parametrize("name", ["inductive", "efficiency", "generic"])
def test_the_terminal_has_room_for_every_table(name, where):
    made = make_table(replace(where, name=name))
    for cell in made.summary.cells:
        for part in made.summary.table.parts:
            published = cell.published.get(part, 86.0)
            cell.shown[part] = Statistic(published, published / 9, 3)
            if made.summary.reference is not None:
                cell.to_reference[part] = Statistic(-12.3, 9.0, 3)
            if part in cell.published:
                cell.difference[part] = -99.9
    console = Console(width=80, file=io.StringIO(), record=True)
    show(made.summary, console)
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_the_terminal_has_all_figures(three_seeds, as_published):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    console = Console(width=80, file=io.StringIO(), record=True)
    show(made.summary, console)
    text = console.export_text()
    rows = text.splitlines()
    measured = next(i for i, line in enumerate(rows) if "(5) PromptCAL" in line)
    assert "63.0 ± 9.0" in rows[measured]
    assert "62.9 +0.1" in rows[measured + 1]


def test_the_number_of_kmeans_repeats_is_part_of_a_run():
    default = FitJob("cub", "gcd", 0)
    assert default.name.startswith("cub-gcd-seed0-")
    assert default._config().clustering.repeats == 3
    other = FitJob("cub", "gcd", 0, repeats=1)
    assert other.name.startswith("cub-gcd-clustering.repeats=1-seed0-")
    assert other._config().clustering.repeats == 1


def test_a_table_names_other_classes_and_other_weights(where, tmp_path):
    """Also those of a development split, which has only the known classes; the weights of the row are published."""
    rows = [
        {"label": "mine", "method": "gcd", "published": {"CUB": [1, 2, 3], "dev": [1, 2, 3]}},
        {"label": "iBOT", "method": "gcd", "weights": "ibot.pth", "published": {"CUB": [1, 2, 3], "dev": [1, 2, 3]}},
    ]
    columns = [{"title": "CUB", "benchmark": "cub"}, {"title": "dev", "benchmark": "cub-dev"}]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"columns": columns, "rows": rows}))
    request = replace(where, name=str(file), protocol="published")

    def unmet(*overrides):
        lines = csv_lines(make_table(replace(request, overrides=overrides)).csv)
        return {key: line["not_comparable"] for key, line in lines.items()}

    dev = "n_classes is 100, not 200"
    assert unmet() == {("mine", "CUB"): "", ("mine", "dev"): dev, ("iBOT", "CUB"): "", ("iBOT", "dev"): dev}
    assert set(unmet("n_classes=150").values()) == {"n_classes is 150, not 200"}
    found = unmet("model.weights=other.pth")
    assert (found["mine", "CUB"], found["iBOT", "CUB"]) == ("the weights are from other.pth", "")


def test_a_run_with_another_number_of_classes_is_another_run():
    plain = FitJob("cub", "gcd", 0)
    assert FitJob("cub", "gcd", 0, ("n_classes=200",)).name == plain.name
    assert FitJob("cub", "gcd", 0, ("n_classes=150",)).name != plain.name
    assert "n_classes" not in FitJob("cub-dev", "gcd", 0).name


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
    assert job._overrides(str(tmp_path), None)[-1] == f"model.weights={tmp_path}/ibot_vitb16.pth"


def test_bars_show_means_intervals_and_published_marks(three_seeds):
    made = make_table(replace(three_seeds, name="semiag-ablation"))
    figure = plot.draw_plot(made.summary)
    (panel,) = figure.axes
    widths = sorted(round(patch.get_width(), 6) for patch in panel.patches)
    assert widths == [51.5] * 3 + [63.0] * 3
    (_, _, (segments,)) = [c for c in panel.containers if isinstance(c, ErrorbarContainer)][-1].lines
    (low, _), (high, _) = segments.get_segments()[0]
    assert (low, high) == pytest.approx(stats.ttest_1samp([60, 62, 67], 0).confidence_interval(0.95))
    marks = np.concatenate([c.get_offsets() for c in panel.collections if hasattr(c, "get_offsets")])
    published = [f for row in made.summary.table.rows for f in row.published["CUB-200"]]
    assert set(published) <= {round(float(x), 6) for x in marks[:, 0]}
    assert [label.get_text() for label in panel.get_yticklabels()] == [r.label for r in made.summary.table.rows]


def test_the_verb_makes_the_same_report(three_seeds):
    made = api.table(
        name="semiag-ablation", output=three_seeds.output, root=three_seeds.root, run=False, progress=False
    )
    assert "63.0 ± 9.0" in made.markdown.read_text()
