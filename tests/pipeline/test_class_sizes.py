"""What the read-out expects of the sizes of the categories."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from promptcal import cluster
from promptcal.data.class_sizes import are_imbalanced
from promptcal.methods import load_config
from promptcal.metrics import discovery_accuracy
from promptcal.pipeline.clustering import cluster_prior

SIZES = [300, 150, 75, 40, 20, 12]  # of classes 0, 2 and 4, which are known, and of the new classes 1, 3 and 5


def test_chance_alone_is_no_imbalance():
    generator = np.random.default_rng(0)
    for mean in (3, 10, 100):
        assert not any(are_imbalanced(generator.poisson(mean, 30)) for _ in range(50))
    assert are_imbalanced(SIZES)
    assert not are_imbalanced([])
    assert not are_imbalanced([0, 0])


@pytest.mark.parametrize(
    ("setting", "counts", "expected"),
    [
        ("auto", [20, 25], "balanced"),
        ("auto", [40, 4, 3], "none"),
        ("balanced", [40, 4, 3], "balanced"),
        ("estimated", [20, 25], "estimated"),
        ("none", [20, 25], "none"),
    ],
)
def test_the_prior_follows_the_setting_and_the_labels(setting, counts, expected):
    config = load_config(values={"n_classes": 4}, overrides=(f"clustering.prior={setting}",))
    labels = np.concatenate([np.full(9, -1), np.repeat(np.arange(len(counts)), counts)])
    sizes = torch.tensor([0.4, 0.3, 0.2, 0.1])
    found = cluster_prior(config, sizes, labels)
    wanted = {"balanced": torch.full((4,), 0.25), "estimated": sizes, "none": None}[expected]
    assert (found is None) if wanted is None else torch.equal(found, wanted)


def test_on_a_long_tail_the_default_is_better_than_k_means(tmp_path):
    generator = np.random.default_rng(1)
    truth = np.repeat(np.arange(len(SIZES)), SIZES)
    centres = 1.5 * generator.normal(size=(len(SIZES), 16))
    features = centres[truth] + generator.normal(size=(len(truth), 16))
    labels = np.where((truth % 2 == 0) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    run = cluster(features=features, labels=labels.tolist(), n_classes=6, output=tmp_path / "run", report=False)
    unlabelled = labels < 0
    names = np.array(run.names)[run.assignments().clusters][unlabelled]
    found = discovery_accuracy([str(c) for c in truth[unlabelled]], names, ["0", "2", "4"])
    plain = KMeans(6, n_init=10, random_state=0).fit_predict(features / np.linalg.norm(features, axis=1)[:, None])
    base = discovery_accuracy(truth[unlabelled], plain[unlabelled], [0, 2, 4])
    assert found.all > base.all + 0.05
    assert found.known >= base.known
    assert found.new >= base.new - 0.02  # two of its 101 images
