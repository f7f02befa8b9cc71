"""Tables from the command to the report, on real runs: one row of each; shared, resumed, damaged and absent runs."""

import csv
import json
import os
import re
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from promptcal import api
from promptcal._version import source_commit
from promptcal.data.benchmarks import benchmark_data
from promptcal.errors import ConfigError, Interrupted
from promptcal.experiments.definition import load_table, table_names
from promptcal.experiments.run_records import RunRecord, benchmark_config, collect, read_run
from promptcal.methods import METHODS
from promptcal.methods.base import build_vit
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.pipeline.published import NO_DISTILLATION
from promptcal.run.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("few_images")
ONE_ROW = {  # of each table, one that is its own
    "generic": "k-means",
    "fine-grained": "PromptCAL stage 1",
    "semiag-ablation": "(1)",
    "prompt-ablation": "(3)",
    "few-annotation": "GCD",
    "further-ablation": "ranking",
    "neighbourhood": "K = 5",
    "cal-weight": "0.2",
    "herbarium": "PromptCAL",
    "pretraining": "randomly",
    "inductive": "GCD",
    "supervised-prompts": "1 of 5",
    "efficiency": "5 prompts",
}


def table(name, output, settings, **more):
    options = {"scale": "mini", "overrides": settings, "kmeans_repeats": 2, "device": "cpu", "progress": False}
    return api.table(name=name, output=output, **options, **more)


def lines_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_of_repeats(scores):
    """The mean over the seeds of k-means; a classifier has one score."""
    repeats = scores.get("repeats", [scores])
    return {part: np.mean([one[part] for one in repeats]) for part in repeats[0]}


def final_score(run):
    return mean_of_repeats(json.loads((run / "results.json").read_text())["selected"])


def accuracy_of(results, stage):
    """(selected, last) as the run itself says."""
    if stage == "warmup":
        scores = (results["stages"]["warmup"]["accuracy"],) * 2  # the last epoch was selected
    else:
        scores = results["selected"], results["last"]
    assert [len(s["repeats"]) for s in scores] == [2, 2]
    return [mean_of_repeats(s) for s in scores]


@pytest.mark.parametrize("name", [n for n in table_names() if n != "efficiency"])
def test_a_row_of_each_table(name, shared_output, small_settings, results_of):
    made = table(name, shared_output, small_settings, seeds=[0], rows=[ONE_ROW[name]])
    assert not made.summary.problems
    wanted = [c for c in made.summary.cells if ONE_ROW[name].lower() in c.cell.row.label.lower()]
    assert wanted
    assert all(c.status == "finished" for c in wanted)
    runs = lines_of(made.runs_csv)
    for line in lines_of(made.csv):
        of_row = [r for r in runs if (r["row"], r["dataset"]) == (line["row"], line["dataset"])]
        if line["status"] != "finished":
            continue
        (run,) = of_row
        results = results_of(shared_output, run["run"])
        assert results["method"] == line["method"]
        assert results["protocol"] == ("inductive" if name == "inductive" else "transductive")
        selected, last = accuracy_of(results, line["score"])
        assert line["kmeans_repeats"] == "2"
        for part in load_table(name).measured_parts:
            assert float(line[f"{part}_selected_mean"]) == pytest.approx(100 * selected[part], abs=1e-6)
            assert float(line[f"{part}_last_mean"]) == pytest.approx(100 * last[part], abs=1e-6)
            assert line[f"{part}_selected_std"] == line[f"{part}_selected_ci95"] == ""  # one seed
        assert float(line["seconds"]) == results["seconds"]
    text = made.markdown.read_text()
    assert "One seed (0), 2 k-means repeats each, so there is no interval." in text
    assert made.plot.read_bytes()[:4] == b"\x89PNG"


def test_all_rows_by_the_published_protocol(shared_output, small_settings, results_of):
    """PromptCAL selects by the test images and says that distillation is missing; the others take the last epoch."""
    made = table("fine-grained", shared_output, small_settings, seeds=[0], protocol="published")
    assert not made.summary.problems
    lines = [line for line in lines_of(made.csv) if line["dataset"] == "CUB-200"]
    assert [line["row"] for line in lines] == [row.label for row in load_table("fine-grained").rows]
    assert {line["status"] for line in lines} == {"finished"}
    assert {line["method"] for line in lines} == {"kmeans", "rankstats", "uno", "gcd", "orca", "promptcal", "simgcd"}
    assert {line["all_difference"] for line in lines} == {""}
    runs = {line["row"]: line["run"] for line in lines_of(made.runs_csv)}
    for label, run in runs.items():
        is_promptcal = label.startswith("PromptCAL")
        directory, results = RunDirectory(shared_output / run), results_of(shared_output, run)
        config = directory.config()
        assert (config.protocol, config.selection.by) == ("published", "oracle" if is_promptcal else "last")
        missing = [reason for reason in results["unmet_conditions"] if "distillation" in reason]
        assert missing == ([NO_DISTILLATION] if is_promptcal else [])
        assert directory.held_out().paths == []  # all labels were trained on
    text = made.markdown.read_text()
    assert f"- PromptCAL stage 1, PromptCAL: {NO_DISTILLATION}.\n" in text
    assert "- Published protocol: trained on all labels, epoch selected by each method's own rule.\n" in text


def test_a_table_and_a_document_of_ones_own(promptcal, shared_output, settings_arguments, results_of, tmp_path):
    file, page = tmp_path / "mine.yaml", tmp_path / "page.md"
    file.write_text(
        "columns: [{title: Mini, benchmark: mini}]\ndetails: [seeds, epochs]\nrows:\n"
        "  - {label: k-means, method: kmeans, published: {Mini: [50, 60, 70]}}\n"
        "  - {label: beta 0.2, method: promptcal, overrides: [loss.beta=0.2]}\n"
    )
    page.write_text("<!-- table: mine -->\n<!-- end -->\n")
    arguments = ["table", file, "--seeds", "0", "--output", shared_output, "--device", "cpu", *settings_arguments]
    assert promptcal(*arguments)[0] == 0
    (report,) = [f for f in (shared_output / "reports").glob("mine-*.csv") if "-runs" not in f.name]
    kmeans, beta = lines_of(report)
    (run,) = shared_output.glob("mini-promptcal-loss.beta=0.2*seed0-*")
    config = (run / "config.yaml").read_text()
    assert "beta: 0.2" in config
    assert "memory: 64" in config
    assert float(beta["all_selected_mean"]) == pytest.approx(100 * final_score(run)["all"])
    assert kmeans["all_difference"] == ""
    assert "model.backbone is vit_tiny_patch4_32.promptcal, not vit_base_patch16_224.dino" in kmeans["not_comparable"]
    assert promptcal(*arguments, "--document", page)[0] == 0
    values = " / ".join(f"{100 * final_score(run)[part]:.1f}" for part in ("all", "known", "new"))
    row = page.read_text().splitlines()[4]
    assert row.startswith(f"| beta 0.2 | {values} | ")
    assert row.endswith(" | 1 | 1 + 1 |")

    (kept,) = collect("mini", [str(run)], tmp_path)
    record = RunRecord.read(kept)
    assert record == read_run(run, "mini")
    assert record.commit == RunDirectory(run).info().commit == source_commit()
    assert (record.method, record.seed, record.settings["loss.beta"]) == ("promptcal", 0, 0.2)
    assert record.selected.model_dump() == json.loads((run / "results.json").read_text())["selected"]
    assert [(epoch["stage"], epoch["epoch"]) for epoch in record.epochs] == [("warmup", 1), ("affinity", 1)]
    assert record.has_all_seconds()


def test_the_backbone_that_is_not_pretrained_is_random(shared_output, small_settings):
    made = table("pretraining", shared_output, small_settings, seeds=[0], rows=["randomly"])
    (job,) = [c.cell.jobs[0] for c in made.summary.cells if "randomly" in c.cell.row.label]
    frozen = "backbone.blocks.0.attn.qkv.weight"
    trained = load_file(shared_output / job.name / "model.safetensors")[f"vit.{frozen}"]
    pretrained, random, other = (
        build_vit(METHODS["promptcal"](job_config(job, seed, pretrained)), pretrained=True).vit.state_dict()[frozen]
        for seed, pretrained in ((0, True), (0, False), (1, False))
    )
    assert torch.equal(trained, random)
    assert not torch.equal(random, pretrained)
    assert not torch.equal(random, other)


def job_config(job, seed, pretrained):
    overrides = (*job.settings, *job.changes, f"model.pretrained={str(pretrained).lower()}", f"seed={seed}")
    return benchmark_config(job.benchmark, job.method, overrides)


def test_mean_and_interval_over_seeds_and_nothing_runs_twice(promptcal, shared_output, settings_arguments, results_of):
    arguments = ["table", "generic", "--seeds", "0", "1", "2", "--rows", "k-means", "--preset-scale", "mini"]
    arguments += ["--output", shared_output, "--device", "cpu", *settings_arguments]
    code, out, err = promptcal(*arguments)
    assert code == 0
    assert len(re.findall(r"^\[\d/\d\] ", err, re.MULTILINE)) in (2, 3)  # seed 0 may be there already
    (report,) = (shared_output / "reports").glob("generic-mini-*-runs.csv")
    runs = [r["run"] for r in lines_of(report) if (r["row"], r["dataset"]) == ("k-means", "CIFAR-10")]
    assert len(runs) == 3
    line = lines_of(report.with_name(report.name.replace("-runs", "")))[0]
    for part in ("all", "known", "new"):
        values = [100 * final_score(shared_output / run)[part] for run in runs]
        assert float(line[f"{part}_selected_mean"]) == pytest.approx(np.mean(values), abs=1e-6)
        assert float(line[f"{part}_selected_std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        shown = f"{np.mean(values):.1f} ± {(high - low) / 2:.1f}"
        assert shown in out
        assert shown in report.with_name(report.name.replace("-runs.csv", ".md")).read_text()
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in shared_output.rglob("results.json")}
    reports = {
        file: file.read_bytes()
        for file in (shared_output / "reports").glob("generic-mini-*")
        if ".png" not in file.name
    }
    code, _, err = promptcal(*arguments)
    assert code == 0
    assert err == ""
    assert before == {
        file: (file.read_bytes(), file.stat().st_mtime_ns) for file in shared_output.rglob("results.json")
    }
    assert reports == {file: file.read_bytes() for file in reports}


def test_tables_share_runs(tmp_path, shared_output, small_settings):
    table("herbarium", shared_output, small_settings, seeds=[0], rows=["PromptCAL"])
    for name in ("semiag-ablation", "generic", "supervised-prompts", "neighbourhood"):
        states = {job.name: state.name for job, state in runs_of(name, shared_output, small_settings)}
        finished = [n for n, state in states.items() if state == "finished"]
        assert any(re.match(r"mini-promptcal-(?!.*(beta|mining|cal=|supervised))", n) for n in finished), name


def runs_of(name, output, settings, **more):
    options = {"scale": "mini", "overrides": settings, "kmeans_repeats": 2, "seeds": [0]}
    return api.table_runs(name=name, output=output, **options, **more)


def test_stage_1_of_a_run_is_what_the_warm_up_alone_gives(shared_output, tmp_path, small_settings, results_of):
    made = table("fine-grained", shared_output, small_settings, seeds=[0], rows=["PromptCAL stage 1"])
    (row,) = {c.cell.jobs[0].name for c in made.summary.cells if c.cell.row.label == "PromptCAL stage 1"}
    alone = tmp_path / "alone"
    api.benchmark(
        name="mini", method="promptcal-warmup", output=alone, seed=0, progress=False,
        overrides=[*small_settings, "clustering.repeats=2"], report=False,
    )  # fmt: skip
    expected = json.loads((alone / "results.json").read_text())["selected"]
    results = results_of(shared_output, row)
    assert results["stages"]["warmup"]["accuracy"] == expected
    assert set(results["baselines"]) == {"kmeans", "semi_supervised_kmeans"}
    assert results["comparison"] is None  # a run of a table makes no first result


# -- what goes wrong ------------------------------------------------------------------------------------------


def test_an_interrupted_run_is_resumed_and_ends_as_if_it_had_not_been(
    promptcal, tmp_path, shared_output, small_settings, settings_arguments, results_of, monkeypatch
):
    whole = table("cal-weight", shared_output, small_settings, seeds=[0], rows=["0.2"])
    name = whole.summary.cells[0].cell.jobs[0].name
    steps = 0
    original = AffinityStage.step

    def step_and_interrupt(self, *arguments, **more):
        nonlocal steps
        steps += 1
        if steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments, **more)

    arguments = ["table", "cal-weight", "--rows", "0.2", "0.4", "--seeds", "0", "--preset-scale", "mini", "--quiet"]
    arguments += ["--output", tmp_path, "--device", "cpu", *settings_arguments]
    with monkeypatch.context() as patched:
        patched.setattr(AffinityStage, "step", step_and_interrupt)
        code, _, err = promptcal(*arguments)
    assert (code, steps) == (130, 2)
    assert f"stopped in {name} (0 of 2 runs done); run the same command to continue" in err
    states = {
        job.name: state.name for job, state in runs_of("cal-weight", tmp_path, small_settings, rows=["0.2", "0.4"])
    }
    assert list(states.values()) == ["interrupted", "missing"]
    arguments.remove("--quiet")
    code, _, err = promptcal(*arguments)
    assert code == 0
    assert f"[1/2] resuming {name}" in err
    resumed, expected = results_of(tmp_path, name), results_of(shared_output, name)
    assert resumed["selected"] == expected["selected"]
    assert resumed["stages"] == expected["stages"]


def test_a_damaged_run_is_named_and_the_others_are_there(promptcal, tmp_path, small_settings, settings_arguments):
    arguments = ["table", "generic", "--seeds", "0", "1", "--rows", "k-means", "--preset-scale", "mini", "--quiet"]
    arguments += ["--output", tmp_path, "--device", "cpu", *settings_arguments]
    assert promptcal(*arguments)[0] == 0
    damaged, sound = sorted(folder for folder in tmp_path.glob("mini-kmeans-*"))
    (damaged / "results.json").write_text('{"selected": {"al')
    code, out, err = promptcal(*arguments)
    assert code == 1
    assert f"promptcal: {damaged.name}: damaged." in err
    assert "delete its folder and run the table again" in err
    assert sound.name not in err
    assert "1 of 2" in out
    assert (damaged / "results.json").read_text() == '{"selected": {"al'  # nothing is overwritten
    (damaged / "run.json").unlink()
    code, _, err = promptcal(*arguments)
    assert code == 1
    assert f"{damaged.name}: damaged. {damaged} has no run.json" in err


def test_a_run_that_fails_does_not_lose_the_others(promptcal, tmp_path, settings_arguments, monkeypatch):
    def fails_for_one(entry, *arguments, **more):
        if entry.name == "mini-c30-l50":
            raise RuntimeError("the disk is on fire")
        return original(entry, *arguments, **more)

    original = benchmark_data._read
    monkeypatch.setattr(benchmark_data, "_read", fails_for_one)
    arguments = [
        "table",
        "few-annotation",
        "--rows",
        "GCD",
        "--seeds",
        "0",
        "--preset-scale",
        "mini",
        "--output",
        tmp_path,
    ]
    code, out, err = promptcal(*arguments, "--quiet", *settings_arguments)
    assert code == 1
    (failed,) = [line for line in err.splitlines() if line.startswith("promptcal: ")]
    assert re.match(r"promptcal: mini-c30-l50-gcd-.*: failed. RuntimeError: the disk is on fire; see", failed)
    (trace,) = (tmp_path / "failures").iterdir()
    assert "in fails_for_one" in trace.read_text()
    (report,) = [f for f in (tmp_path / "reports").glob("*.csv") if "-runs" not in f.name]
    states = {line["dataset"]: line["status"] for line in lines_of(report) if line["row"] == "GCD"}
    assert states == {"C50-L10": "finished", "C25-L50": "failed", "C10-L50": "finished"}
    assert "failed" in out


def test_absent_data_are_a_row_of_their_own(promptcal, tmp_path):
    arguments = [
        "table",
        "semiag-ablation",
        "--seeds",
        "0",
        "--root",
        tmp_path / "nothing",
        "--output",
        tmp_path / "out",
    ]
    code, out, err = promptcal(*arguments)
    assert code == 1
    assert "data absent" in out
    assert "data absent. CUB-200-2011 is not in" in err
    assert "62.9" in out  # what is published is there all the same
    assert not list((tmp_path / "out").glob("cub-*"))
    (line,) = [x for x in lines_of(tmp_path / "out" / "reports" / "semiag-ablation.csv") if x["row"] == "(5) PromptCAL"]
    assert (line["status"], line["all_selected_mean"], line["all_published"]) == ("data absent", "", "62.9")


def test_weights_that_must_be_fetched_by_hand_are_asked_for(promptcal, tmp_path):
    (tmp_path / "cifar100.npz").touch()
    code, out, _ = promptcal("table", "pretraining", "--dry-run", "--root", tmp_path, "--output", tmp_path / "out")
    assert code == 0
    assert "the weights ibot_vitb16.pth are not in" in out
    (tmp_path / "ibot_vitb16.pth").touch()
    code, out, _ = promptcal("table", "pretraining", "--dry-run", "--root", tmp_path, "--output", tmp_path / "out")
    assert "9 runs in" in out
    assert "9 would run" in out


def test_a_misspelt_setting_stops_before_anything_runs(promptcal, tmp_path):
    code, _, err = promptcal("table", "cal-weight", "--set", "afinity.k=3", "--output", tmp_path / "out")
    assert code == 2
    assert "the method promptcal has no setting 'afinity'; did you mean 'affinity'?" in err
    assert not (tmp_path / "out").exists()


def test_only_what_is_finished_is_reported_without_running(tmp_path, small_settings):
    made = table("semiag-ablation", tmp_path, small_settings, seeds=[0], run=False)
    assert {c.status for c in made.summary.cells} == {"not run"}
    assert not list(tmp_path.glob("mini-*"))
    assert "| (5) PromptCAL | not run |" in made.markdown.read_text()


# -- the command line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds", [["--seeds", "3", "5"], ["--seeds", "3,5"], ["--seeds", "3", "--seeds", "5"], ["--seeds=3,5"]]
)
def test_seeds_are_given_in_any_way(promptcal, tmp_path, seeds):
    for order in (["table", "cal-weight", *seeds], ["table", *seeds, "cal-weight"]):
        code, out, _ = promptcal(*order, "--dry-run", "--preset-scale", "mini", "--output", tmp_path)
        assert code == 0
        assert "10 runs in" in out
        assert "10 missing. 10 would run." in " ".join(out.split())
    jobs = api.table_runs(name="cal-weight", seeds=[3, 5], scale="mini", output=tmp_path)
    assert [job.seed for job, _ in jobs] == [3] * 5 + [5] * 5


def test_tables_are_listed_with_how_far_they_are(promptcal, tmp_path):
    for arguments in (["--list"], []):
        code, out, _ = promptcal("table", *arguments, "--preset-scale", "mini", "--output", tmp_path, "--seeds", "0")
        assert code == 0
        for name in table_names():
            (line,) = [x for x in out.splitlines() if x.split("│")[1:2] and x.split("│")[1].strip() == name]
            assert line.split("│")[-2].strip() == "0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generics"], "there is no table 'generics'; choose one of generic, fine-grained"),
        (["generic", "--preset-scale", "huge"], "there is no scale 'huge'; choose full or mini"),
        (["generic", "--rows", "vgg"], "the table generic has no row 'vgg'"),
        (["generic", "--seeds", "one"], "seeds are whole numbers, not one"),
        (["--rows", "GCD", "generic"], "give the name of a table first"),
    ],
)
def test_what_cannot_be_asked_for(promptcal, tmp_path, arguments, message):
    code, _, err = promptcal("table", *arguments, "--output", tmp_path / "out")
    assert code == 2
    assert message in " ".join(re.sub("[│╭╰─]", " ", err).split())
    assert not (tmp_path / "out").exists()


def test_seeds_are_needed():
    with pytest.raises(ConfigError, match="give at least one seed"):
        api.table_runs(name="generic", seeds=[])


def test_interrupted_is_what_the_verb_raises(tmp_path, small_settings, monkeypatch):
    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_data, "_read", stop)  # while images are read
    with pytest.raises(Interrupted, match=r"stopped in mini-kmeans-.*run the same command"):
        table("generic", tmp_path, small_settings, seeds=[0], rows=["k-means"])


# -- every row ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "protocol"), [*((n, "default") for n in table_names()), ("fine-grained", "published")]
)
def test_every_row_of_every_table(name, protocol, shared_output, small_settings):
    made = table(name, shared_output, small_settings, seeds=[0], protocol=protocol)
    assert {c.status for c in made.summary.cells} <= {"finished", "published only"}
    assert not made.summary.problems
    for c in made.summary.cells:
        if c.cell.jobs:
            assert set(c.selected.means) == set(made.summary.table.measured_parts)
