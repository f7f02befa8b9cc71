"""What a run says about its categories: parts of known classes, suggested merges and splits, and their CSV."""

import csv
import tracemalloc

import numpy as np
import pytest
import torch

from promptcal.run.assignments import Assignments
from promptcal.run.categories import COLUMNS, CategoryTable, describe_categories, parts_of_known

NAMES = [*(f"class {i}" for i in range(6)), "new-1", "new-2"]


def assignments(clusters, labelled, stability=None, names=NAMES, n_known=6):
    n = len(clusters)
    return Assignments(
        [f"{i}.png" for i in range(n)], clusters, np.ones(n), names, [i < n_known for i in range(len(names))], labelled,
        np.full(n, -1), np.zeros(n), stability=stability,
    )  # fmt: skip


@pytest.fixture(scope="module")
def points():
    """Seven Gaussian classes of 60 points as unit vectors, their classes, and one coordinate of the noise."""
    generator = np.random.default_rng(0)
    truth = np.repeat(np.arange(7), 60)
    raw = np.eye(7, 20)[truth] + 0.12 * generator.normal(size=(len(truth), 20))
    return torch.nn.functional.normalize(torch.from_numpy(raw).float(), dim=1), truth, raw[:, 15]


def test_a_part_of_a_known_class_is_recognised_and_another_class_is_not(points):
    """Half of the unlabelled images of class 2 are new-1; new-2 is a class of its own."""
    embeddings, truth, noise = points
    labelled = (truth < 6) & (np.arange(len(truth)) % 3 == 0)
    clusters = np.where(truth == 6, 7, truth)
    clusters[(truth == 2) & (noise > 0) & ~labelled] = 6
    table = describe_categories(assignments(clusters, labelled), embeddings)
    part, own = table.categories[6], table.categories[7]
    assert (part.part_of, part.nearest_known) == ("class 2", "class 2")
    assert (own.part_of, own.split, own.merge_with) == (None, None, [])
    assert part.distance < 0.3 < own.distance
    assert table.categories[2].merge_with == ["new-1"]
    assert (table.merges[0].cluster, table.merges[0].into) == (6, 2)
    assert table.merges[0].false_rate == pytest.approx(1 / 7)  # of six classes, none is connected as strongly
    assert table.advice() == ["new-1 is probably part of class 2."]


def test_the_share_of_labelled_images_decides():
    """Category 1 has 20 images, class 0 has 20 unlabelled ones: of its 10 labels 5 are expected, 2.5 needed."""
    clusters = np.array([0] * 30 + [1] * 20)
    labelled = np.arange(50) < 10
    for n_near, expected in ((2, {}), (3, {1: 0})):
        nearest = (np.arange(10) < n_near).astype(int)
        assert parts_of_known(assignments(clusters, labelled, names=["a", "b"], n_known=1), nearest) == expected


def test_parts_of_a_new_class_may_be_merged_and_two_classes_in_one_split(points):
    embeddings, truth, noise = points
    labelled = (truth < 6) & (np.arange(len(truth)) % 3 == 0)
    divided = np.where((truth == 6) & (noise > 0), 7, truth)
    table = describe_categories(assignments(divided, labelled), embeddings)
    assert table.categories[6].merge_with == ["new-2"]
    assert "new-2 and new-1 may be one category." in table.advice()

    joined = np.where(truth >= 5, 5, truth)  # class 5 is not labelled here, and in one category with class 6
    names = ["class 0", "class 1", "class 2", "class 3", "class 4", "new-1"]
    table = describe_categories(assignments(joined, labelled & (truth < 5), names=names, n_known=5), embeddings)
    assert "form two groups that are less connected than the halves of a known class" in table.categories[5].split
    assert [c.split for c in table.categories[:5]] == [None] * 5


def test_a_category_with_low_stability_may_be_several(points):
    embeddings, truth, _ = points
    clusters = np.where(truth == 6, 7, truth)
    clusters[:3] = 6
    stability = np.where(clusters == 7, 0.4, 0.9)
    table = describe_categories(assignments(clusters, np.zeros(len(truth), dtype=bool), stability), embeddings)
    assert table.categories[7].split == "its stability is 0.40"
    assert table.categories[7].stability == pytest.approx(0.4)


def test_the_file_has_a_row_for_each_category(points, tmp_path):
    embeddings, truth, _ = points
    found = assignments(np.where(truth == 6, 7, truth), truth < 3)
    table = describe_categories(found, embeddings)
    table.write_csv(tmp_path / "categories.csv")
    with (tmp_path / "categories.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["name"] for row in rows] == NAMES
    assert (rows[6]["images"], rows[6]["nearest_known"], rows[7]["kind"]) == ("0", "", "new")
    assert CategoryTable.model_validate_json(table.model_dump_json()) == table


def test_as_many_categories_as_a_file_can_name_take_little_memory():
    """A table of all pairs would take 3 GB."""
    names = [f"new-{i}" for i in range(20_000)]
    found = assignments(np.arange(60) * 300, np.zeros(60, dtype=bool), names=names, n_known=0)
    features = torch.nn.functional.normalize(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    tracemalloc.start()
    table = describe_categories(found, features)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28
    assert [c.images for c in table.categories[:301:300]] == [1, 1]
    assert table.merges == []
