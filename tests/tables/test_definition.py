"""The tables as data: every published figure against the paper's own source, and what a row runs."""

import re
from pathlib import Path

import pytest

from promptcal.config.schema import load_config
from promptcal.data.benchmarks import get_benchmark
from promptcal.errors import ConfigError
from promptcal.experiments.definition import NAMES, PARTS, chosen_rows, load_table

SHARED = Path(__file__).parents[3] / "shared"
PAPER = SHARED / "paper" / "promptcal.tex"
METHOD = SHARED / "method.md"
needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not beside the checkout")
needs_method = pytest.mark.skipif(not METHOD.is_file(), reason="method.md is not beside the checkout")


def figures_in_paper(label: str) -> list[list[float]]:
    """The numbers of each row of the table with this label, from LaTeX."""
    text = PAPER.read_text(encoding="utf-8")
    end = text.index(f"\\label{{{label}}}")
    body = text[text.rindex("\\begin{tabular}", 0, end) : text.rindex("\\end{tabular}", 0, end)]
    rows = []
    for line in body.split("\\\\"):
        line = re.sub(r"(\\(?:red|green)score\{[^}]*\})\{[^}]*\}", r"\1", line)  # the difference to the last row
        line = re.sub(r"\$([\d.]+) \\times 10\^\{(-\d)\}\$", r"\1e\2", line)
        figures = [float(n) for n in re.findall(r"(?<![\w.-])\d+\.\d+(?:e-\d)?(?![\w.])|(?<=& )\d{3}(?= &)", line)]
        if figures:
            rows.append(figures)
    return rows


def figures_in_definition(name: str) -> list[list[float]]:
    table = load_table(name)
    rows = []
    for row in table.rows:
        if row.added is None and row.published:
            by_column = [(row.published | row.printed).get(c.title, []) for c in table.columns]
            rows.append([f for figures in by_column for f in figures if f is not None])
    return rows


@needs_paper
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("further-ablation", "cal-weight")])
def test_figures_are_the_papers(name):
    assert figures_in_definition(name) == figures_in_paper(load_table(name).source)


@needs_paper
def test_figures_of_the_table_that_lists_datasets_below_each_other():
    table = load_table("further-ablation")
    by_dataset = [row.published[c.title] for c in table.columns for row in table.rows]
    assert by_dataset == figures_in_paper(table.source)


@needs_paper
def test_the_figure_without_numbers_borrows_the_default_from_the_main_table():
    text = PAPER.read_text(encoding="utf-8")
    table = load_table("cal-weight")
    assert f"\\label{{{table.source}}}" in text
    assert "$\\beta$ values from $0.2$ to $1.0$ at an interval of $0.2$" in text
    main = next(r for r in load_table("fine-grained").rows if r.label == "PromptCAL")
    published = {r.label: r.published for r in table.rows if r.published}
    assert published == {"beta = 0.6": {"StanfordCars": main.published["StanfordCars"]}}
    assert load_config(values={"n_classes": 2}).loss.beta == 0.6


def figures_in_method() -> dict[tuple[str, str], list[float]]:
    """(method, dataset) -> figures, from the table of published results in method.md."""
    section = METHOD.read_text(encoding="utf-8").split("## Published results")[1].split("\n## ")[0]
    lines = [[c.strip() for c in x.strip("|").split("|")] for x in section.splitlines() if x.startswith("|")]
    header, rows = lines[0], lines[2:]
    found = {}
    for cells in rows:
        for dataset, cell in zip(header[1:], cells[1:], strict=True):
            if cell:
                found[cells[0], dataset] = [float(n) for n in cell.split("/")]
    return found


@needs_method
@pytest.mark.parametrize("name", ["generic", "fine-grained", "herbarium"])
def test_figures_are_those_of_the_corrected_table(name):
    datasets = {"CUB-200": "CUB", "StanfordCars": "Cars", "Herbarium-19": "Herbarium"}
    expected, table = figures_in_method(), load_table(name)
    for row in table.rows:
        for column in table.columns:
            method = "SimGCD (2023, mean of 5)" if row.label == "SimGCD" else row.label
            theirs = expected[method, datasets.get(column.title, column.title)]
            assert row.published[column.title][: len(theirs)] == theirs, (row.label, column.title)


def test_only_the_aircraft_column_is_corrected_and_a_note_says_so():
    corrected = {(name, row.label, column) for name in NAMES for row in load_table(name).rows for column in row.printed}
    methods = ("k-means", "RankStats+", "UNO+")
    assert corrected == {("fine-grained", method, "Aircraft") for method in methods}
    herbarium = {row.label: row.published["Herbarium-19"] for row in load_table("herbarium").rows}
    for row in load_table("fine-grained").rows:
        if row.printed:
            assert row.printed["Aircraft"] == herbarium[row.label]  # what the paper mixed up
    assert any("Aircraft" in note for note in load_table("fine-grained").notes)


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_a_heading_and_every_benchmark_exists_at_both_scales(name):
    table = load_table(name)
    assert set(table.parts) <= set(PARTS)
    if table.kind == "accuracy":
        for column in table.columns:
            names = column.benchmark_at("full"), column.benchmark_at("mini")
            assert get_benchmark(names[0]).inductive == get_benchmark(names[1]).inductive
            assert column.benchmark_at("mini").startswith("mini")


def test_few_annotations_stay_fewer_at_mini_scale():
    shares = [get_benchmark(c.benchmark_at("mini")) for c in load_table("few-annotation").columns]
    assert [(len(s.known), s.labelled_share) for s in shares] == [(5, 0.1), (3, 0.5), (2, 0.5)]


def test_rows_are_found_by_label_or_part_of_it():
    table = load_table("generic")
    assert [r.label for r in chosen_rows(table, ["promptcal"])] == ["PromptCAL"]
    assert [r.label for r in chosen_rows(table, ["stage", "gcd"])] == ["GCD", "PromptCAL stage 1"]
    assert [r.label for r in chosen_rows(load_table("semiag-ablation"), ["(3)"])] == ["(3) without SemiPriori"]
    with pytest.raises(ConfigError, match="the table generic has no row 'vgg'; its rows are: k-means; RankStats"):
        chosen_rows(table, ["vgg"])


def test_an_unknown_table_is_one_sentence():
    with pytest.raises(ConfigError, match="there is no table 'specific'; choose one of generic, fine-grained"):
        load_table("specific")
