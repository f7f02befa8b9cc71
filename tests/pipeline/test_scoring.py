"""Final scores: NMI and ARI beside accuracy, and the mean over several seeds of k-means."""

import csv

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from promptcal.api import fit
from promptcal.cli.run_output import results_table
from promptcal.discovery import SemiSupervisedKMeans
from promptcal.metrics import DiscoveryAccuracy, discovery_accuracy
from promptcal.run.results import RunResults, Scores
from promptcal.runtime.seeds import derive_seed

SHORT = ("model.image_size=8", "optim.epochs=1", "tensorboard=false", "clustering.n_init=1")


@pytest.fixture(scope="module")
def run_of(small_set, common_settings, tmp_path_factory):
    images, truth, labels = small_set

    def run(method, *more):
        return fit(
            images=images, labels=labels, truth=truth, n_classes=4, method=method,
            output=tmp_path_factory.mktemp("run"), overrides=[*common_settings, *SHORT, *more], progress=False,
            report=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def repeated(run_of):
    return run_of("gcd", "clustering.repeats=3")


def test_nmi_and_ari_are_of_the_assignments_file(repeated, small_set):
    with repeated.directory.assignments_file.open(newline="") as file:
        rows = [(i, row["cluster"]) for i, row in enumerate(csv.DictReader(file)) if row["labelled"] == "no"]
    truth, clusters = [small_set[1][i] for i, _ in rows], [cluster for _, cluster in rows]
    found = repeated.directory.results().selected
    assert found.nmi == pytest.approx(normalized_mutual_info_score(truth, clusters))
    assert found.ari == pytest.approx(adjusted_rand_score(truth, clusters))


def test_each_repeat_clusters_the_same_embeddings_with_its_own_seed(repeated, small_set):
    _, truth, labels = small_set
    features, settings = np.load(repeated.directory.embeddings_file), repeated.config.clustering
    expected = []
    for purpose in (("kmeans",), ("kmeans", 1), ("kmeans", 2)):
        seed = derive_seed(0, *purpose)
        kmeans = SemiSupervisedKMeans(4, settings.n_init, settings.max_iter, settings.tol, random_state=seed)
        clusters = kmeans.fit(features, labels).labels_
        expected.append(Scores.of(discovery_accuracy(truth[labels < 0], clusters[labels < 0], [0, 1])))
    found = repeated.directory.results().selected
    assert found.repeats == expected
    assert found.model_copy(update={"repeats": []}) == expected[0]
    assert found.percent()["all"] == pytest.approx(100 * np.mean([scores.all for scores in expected]))


def test_the_first_repeat_is_the_run_without_repeats(repeated, run_of):
    once = run_of("gcd")
    assert once.directory.assignments_file.read_bytes() == repeated.directory.assignments_file.read_bytes()
    found, several = once.directory.results(), repeated.directory.results()
    assert found.selected == several.selected.repeats[0]
    assert '"repeats"' not in once.directory.results_file.read_text()
    for scores in (several.last, several.stages["gcd"].accuracy, *several.baselines.values()):
        assert len(scores.repeats) == 3
    assert found.baselines["kmeans"] == several.baselines["kmeans"].repeats[0]


def test_a_classifier_has_one_score(run_of):
    found = run_of("simgcd", "clustering.repeats=3").directory.results()
    assert found.selected.repeats == found.last.repeats == []
    assert len(found.baselines["kmeans"].repeats) == 3  # clustered by k-means


def test_the_terminal_shows_the_mean_and_what_it_is_of():
    accuracies = [DiscoveryAccuracy(*[value] * 8) for value in (0.5, 0.7)]
    scores = Scores.of_repeats(accuracies)
    found = RunResults(method="gcd", selected=scores, last=scores)
    assert [column.header for column in results_table(found).columns[1:]] == ["All", "Known", "New"]
    table = results_table(found, verbose=True)
    assert table.title == "accuracy on the unlabelled images, %, mean of 2 seeds of k-means"
    assert [column.header for column in table.columns[1:]] == ["All", "Known", "New", "NMI", "ARI"]
    assert [list(column.cells) for column in table.columns[1:]] == [["60.0"]] * 5


def test_scores_of_older_files_have_no_nmi(tmp_path):
    parts = ("all", "known", "new", "separate_all", "separate_known", "separate_new")
    old = Scores.model_validate_json("{" + ", ".join(f'"{part}": 0.5' for part in parts) + "}")
    assert (old.nmi, old.ari) == (None, None)
    assert old.percent() == dict.fromkeys(parts, 50.0)
