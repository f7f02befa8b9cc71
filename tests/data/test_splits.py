"""Which images are labelled, and which labels are kept back."""

import numpy as np
import pytest

from promptcal.data import embedded_set, label_half
from promptcal.data.splits import hold_out
from promptcal.errors import DataError


@pytest.mark.parametrize(("n", "known"), [(1500, [0, 1, 2, 3, 4]), (997, [2, 7]), (30, [5]), (10, [])])
def test_label_half_is_the_published_rule_to_the_letter(n, known):
    labels = np.random.default_rng(3).integers(0, 10, n)
    of_known = [i for i in range(n) if labels[i] in known]
    np.random.seed(0)
    chosen = np.random.choice(range(len(of_known)), replace=False, size=int(0.5 * len(of_known))) if of_known else []
    expected = {of_known[c] for c in chosen}
    assert set(np.flatnonzero(label_half(labels, known))) == expected


def test_label_half_neither_uses_nor_disturbs_the_global_generator():
    labels = np.arange(100) % 4
    np.random.seed(123)
    first = label_half(labels, [0, 1])
    after = np.random.random()
    second = label_half(labels, np.array([0, 1]))
    np.random.seed(123)
    assert np.random.random() == after
    assert np.array_equal(first, second)
    chosen = label_half(labels, [0, 1], share=0.3)
    assert chosen.sum() == 15
    assert set(labels[chosen]) == {0, 1}


def test_hold_out_takes_its_share_of_each_class_and_no_unlabelled_image():
    labels = np.random.default_rng(0).permutation(np.repeat([-1, 0, 1, 2], [50, 100, 40, 10]))
    held = hold_out(labels, 0.1, seed=0)
    assert [int((held & (labels == c)).sum()) for c in (-1, 0, 1, 2)] == [0, 10, 4, 1]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_hold_out_leaves_one_label_and_takes_one_where_there_are_two(fraction, members):
    held = int(hold_out(np.array([-1] * 4 + [0] * members), fraction, seed=0).sum())
    assert held <= members - 1
    assert held >= (members >= 2)
    assert held == 0 if members == 1 else abs(held - fraction * members) <= max(1, 0.5)


def test_hold_out_depends_on_its_seed_only_and_may_be_empty():
    labels = np.zeros(100, dtype=int)
    assert np.array_equal(hold_out(labels, 0.2, seed=1), hold_out(labels, 0.2, seed=1))
    assert not np.array_equal(hold_out(labels, 0.2, seed=1), hold_out(labels, 0.2, seed=2))
    assert not hold_out(np.zeros(10, dtype=int), 0.0, seed=0).any()
    assert not hold_out(np.full(10, -1), 0.5, seed=0).any()


@pytest.mark.parametrize(("split", "per_class"), [("train", 150), ("test", 50)])
def test_the_embedded_images_are_as_described(split, per_class):
    images, labels, classes = embedded_set(split)
    assert (images.shape, images.dtype) == ((10 * per_class, 32, 32, 3), np.uint8)
    assert (labels.shape, labels.dtype) == ((10 * per_class,), np.int64)
    assert np.bincount(labels).tolist() == [per_class] * 10
    assert len(set(classes)) == 10
    assert all(isinstance(c, str) for c in classes)
    assert images.reshape(len(images), -1).std(axis=1).min() > 0


def test_the_embedded_splits_share_no_image_and_there_are_two():
    train, test = ({image.tobytes() for image in embedded_set(s).images} for s in ("train", "test"))
    assert not train & test
    with pytest.raises(DataError, match="no split 'val'; choose train or test"):
        embedded_set("val")
