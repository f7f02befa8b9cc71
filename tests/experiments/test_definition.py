"""The definitions of tables: published values, what a row runs, and tables that users write."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from promptcal.data.benchmarks import get_benchmark
from promptcal.errors import ConfigError
from promptcal.experiments.cells import plan, rows_without
from promptcal.experiments.definition import PARTS, chosen_rows, load_table, table_names
from promptcal.experiments.run_records import benchmark_config
from promptcal.experiments.table_request import TableRequest
from promptcal.methods import METHODS

PUBLISHED = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))


def values_in_definition(name: str) -> list[list[float]]:
    table = load_table(name)
    rows = []
    for row in table.rows:
        if row.added is None and row.published:
            by_column = [(row.published | row.printed).get(c.title, []) for c in table.columns]
            rows.append([value for values in by_column for value in values if value is not None])
    return rows


@pytest.mark.parametrize("name", [n for n in table_names() if n not in ("further-ablation", "cal-weight")])
def test_values_are_those_of_the_paper(name):
    assert values_in_definition(name) == PUBLISHED["paper"][load_table(name).source]


def test_values_of_the_table_that_lists_datasets_one_below_the_other():
    table = load_table("further-ablation")
    by_dataset = [row.published[c.title] for c in table.columns for row in table.rows]
    assert by_dataset == PUBLISHED["paper"][table.source]


def test_the_figure_without_values_takes_the_default_from_the_main_table():
    main = next(r for r in load_table("fine-grained").rows if r.label == "PromptCAL")
    published = {r.label: r.published for r in load_table("cal-weight").rows if r.published}
    assert published == {"beta = 0.6": {"StanfordCars": main.published["StanfordCars"]}}
    assert benchmark_config("cars", "promptcal").loss.beta == 0.6


def test_only_the_aircraft_column_is_corrected_and_a_note_says_so():
    corrected = {(name, row.label): row for name in table_names() for row in load_table(name).rows if row.printed}
    assert {name for name, _ in corrected} == {"fine-grained"}
    assert {label: row.published["Aircraft"] for (_, label), row in corrected.items()} == PUBLISHED["corrected"]
    herbarium = {row.label: row.published["Herbarium-19"] for row in load_table("herbarium").rows}
    for (_, label), row in corrected.items():
        assert row.printed == {"Aircraft": herbarium[label]}  # what the paper confused
    assert any("Aircraft" in note for note in load_table("fine-grained").notes)


@pytest.mark.parametrize("name", ["generic", "fine-grained", "herbarium"])
def test_simgcd_has_the_values_of_its_own_paper(name):
    (row,) = [row for row in load_table(name).rows if row.label == "SimGCD"]
    assert [values[0] for values in row.published.values()] == PUBLISHED["simgcd"][name]
    assert all(values[1:] == [None, None] for values in row.published.values())


@pytest.mark.parametrize("name", table_names())
def test_every_part_has_a_heading_and_every_benchmark_exists_at_both_scales(name):
    table = load_table(name)
    assert set(table.parts) <= set(PARTS)
    if table.kind == "accuracy":
        for column, at_mini_scale in zip(table.columns, table.at("mini").columns, strict=True):
            assert get_benchmark(column.benchmark).inductive == get_benchmark(at_mini_scale.benchmark).inductive
            assert at_mini_scale.benchmark.startswith("mini")


def test_tables_are_listed_in_the_order_of_the_paper():
    assert table_names()[:3] == ["generic", "fine-grained", "semiag-ablation"]
    assert [load_table(name).order for name in table_names()] == list(range(1, 14))


def test_few_annotations_stay_fewer_at_mini_scale():
    shares = [get_benchmark(c.benchmark) for c in load_table("few-annotation").at("mini").columns]
    assert [(len(s.known), s.labelled_share) for s in shares] == [(5, 0.1), (3, 0.5), (2, 0.5)]


@pytest.mark.parametrize("scale", ["full", "mini"])
@pytest.mark.parametrize("name", ["prompt-ablation", "supervised-prompts"])
def test_rows_that_isolate_the_prompts_train_equally_long(name, scale):
    """GCD is stage 1 without prompts, so a difference must not come from more epochs."""
    epochs = set()
    for cell in plan(load_table(name).at(scale), TableRequest(seeds=[0], scale=scale)):
        config = benchmark_config(cell.column.benchmark, cell.row.method, cell.jobs[0].changes)
        stages = METHODS[cell.row.method](config).epochs()
        if cell.score == "warmup" or cell.row.method == "gcd":
            epochs.add(stages.get(cell.score, sum(stages.values())))
    assert len(epochs) == 1


@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).kind == "accuracy"])
def test_the_reference_is_a_row_that_runs_at_both_scales(name):
    for scale in ("full", "mini"):
        table = load_table(name).at(scale)
        (row,) = [row for row in table.rows if row.label == table.reference]
        assert row.method is not None


def test_the_reference_is_the_tables_own_or_chosen_by_the_call():
    table = load_table("generic")
    assert table.reference_label() == "GCD"
    assert table.reference_label("simgcd") == "SimGCD"
    assert table.model_copy(update={"reference": None}).reference_label() == "k-means"  # the first that is run
    with pytest.raises(
        ConfigError, match=r"the reference 'prompt' could be several rows \(PromptCAL stage 1; PromptCAL\)"
    ):
        table.reference_label("prompt")
    with pytest.raises(ConfigError, match="the table generic has no row 'vgg'"):
        table.reference_label("vgg")


def test_rows_are_found_by_label_or_part_of_it():
    table = load_table("generic")
    assert [r.label for r in chosen_rows(table, ["promptcal"])] == ["PromptCAL"]
    assert [r.label for r in chosen_rows(table, ["stage", "gcd"])] == ["GCD", "PromptCAL stage 1"]
    assert [r.label for r in chosen_rows(load_table("semiag-ablation"), ["(3)"])] == ["(3) without SemiPriori"]
    with pytest.raises(ConfigError, match="the table generic has no row 'vgg'; its rows are: k-means; RankStats"):
        chosen_rows(table, ["vgg"])


# -- tables that users write ----------------------------------------------------------------------------------

VALID = {
    "columns": [{"title": "Mini", "benchmark": "mini"}],
    "rows": [
        {"label": "GCD", "method": "gcd"},
        {"label": "mine", "method": "promptcal", "overrides": ["affinity.k=7"], "published": {"Mini": [1, 2, 3]}},
    ],
}


@pytest.fixture
def written(tmp_path):
    def write(**changes):
        row = changes.pop("row", {})
        content = {**VALID, "rows": [VALID["rows"][0], {**VALID["rows"][1], **row}], **changes}
        file = tmp_path / "my-table.yaml"
        file.write_text(yaml.safe_dump(content))
        return str(file)

    return write


def test_a_table_of_a_file(written):
    table = load_table(written())
    assert (table.name, table.parts, table.rows[1].published) == (
        "my-table",
        ["all", "known", "new"],
        {"Mini": [1, 2, 3]},
    )
    jobs = [cell.jobs for cell in plan(table, TableRequest(seeds=[0, 1], overrides=["optim.lr=0.01"]))]
    assert [[(job.benchmark, job.method, job.seed, job.settings, job.changes) for job in row] for row in jobs] == [
        [("mini", "gcd", seed, ("optim.lr=0.01",), ()) for seed in (0, 1)],
        [("mini", "promptcal", seed, ("optim.lr=0.01",), ("affinity.k=7",)) for seed in (0, 1)],
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": []}, "rows: List should have at least 1 item"),
        ({"row": {"metod": "gcd"}}, "row 'mine', metod: Extra inputs are not permitted"),
        ({"row": {"overrides": "affinity.k=7"}}, "row 'mine', overrides: Input should be a valid list"),
        ({"row": {"label": "GCD"}}, "two rows are called 'GCD'; rename one of them"),
        ({"row": {"published": {"mini": [1, 2, 3]}}}, "row 'mine' names a column 'mini'; the columns are Mini"),
        ({"row": {"published": {"Mini": [1]}}}, "row 'mine' has 1 values in column 'Mini'; give 3 (all, known, new)"),
        ({"row": {"records": ["a"]}}, "row 'mine' has a method and records; give one of them"),
        ({"row": {"method": None, "published": {}}}, "row 'mine' has nothing to show; give a method, records or"),
        ({"columns": [{"title": "Mini"}]}, "row 'GCD' has a method, but column 'Mini' has no benchmark"),
        ({"columns": [{"benchmark": "mini"}]}, "columns number 1, title: Field required"),
        ({"parts": ["al"]}, "there is no part 'al'; choose from all, known"),
        ({"reference": "his"}, "there is no row 'his' to be the reference; give the label of a row"),
        ({"tables": {}}, "defines several tables; add --document PAGE.md"),
    ],
)
def test_an_invalid_file_is_one_sentence_that_names_the_row(written, changes, problem):
    with pytest.raises(ConfigError) as raised:
        load_table(written(**changes))
    assert problem in str(raised.value)
    assert "my-table.yaml" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"row": {"method": "magic"}}, "table my-table, row 'mine', column 'Mini': .*magic"),
        ({"row": {"overrides": ["affinity.q=7"]}}, "table my-table, row 'mine', column 'Mini': "),
        ({"columns": [{"title": "Mini", "benchmark": "min"}]}, "row 'GCD', column 'Mini': there is no benchmark 'min'"),
        ({"row": {"method": None, "records": ["a"]}}, "row 'mine', column 'Mini': there is no run record .*a.json"),
    ],
)
def test_what_cannot_be_run_is_named_before_anything_runs(written, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        plan(load_table(written(**changes)), TableRequest(seeds=[0]))


def test_common_settings_apply_to_the_rows_whose_method_has_them():
    table = load_table("generic").at("mini")
    request = TableRequest(scale="mini", seeds=[0], overrides=["affinity.k=7", "optim.lr=0.5", "variant=recommended"])
    cells = plan(table, request)
    overrides = {cell.row.label: cell.jobs[0].settings for cell in cells}
    assert overrides["PromptCAL"] == ("affinity.k=7", "optim.lr=0.5", "variant=recommended")
    assert overrides["GCD"] == overrides["k-means"] == ("optim.lr=0.5",)
    assert "PromptCAL" not in rows_without(table, "affinity.k=7")
    assert rows_without(table, "simgcd.epsilon=1") == [
        row.label for row in table.rows if "simgcd" not in METHODS[row.method].config_class.model_fields
    ]
    for setting in ("afinity.k=7", "affinity.kk=7", "variant=none"):
        with pytest.raises(ConfigError):
            plan(table, replace(request, overrides=[setting]))


def test_unreadable_files_and_unknown_names(tmp_path):
    with pytest.raises(ConfigError, match="there is no table 'specific'; choose one of generic, fine-grained"):
        load_table("specific")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_table(str(tmp_path / "none.yaml"))
    for text, problem in (("rows: [", "is not valid YAML"), ("- a", "defines no table")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            load_table(str(tmp_path / "bad.yaml"))
