"""The settings of each baseline on each benchmark are those of its publication."""

import pytest
import torch

from promptcal.methods import METHODS, load_config
from promptcal.methods.assignment import ClassifierAssignment, KMeansAssignment

BENCHMARKS = ("cifar10", "cifar100", "imagenet100", "cub", "cars", "aircraft", "herbarium19")
FEW_LABELS = ("cifar100-c50-l10", "cifar100-c25-l50", "cifar100-c10-l50")
# epochs, batch, sampling, schedule, warm-up epochs, lowest rate, weight decay; lr is 0.1 unless a test says otherwise
TRAINING = {
    "gcd": (200, 128, "balanced", "cosine", 0, 1e-4, 5e-5),
    "simgcd": (200, 128, "balanced", "cosine", 0, 1e-4, 5e-5),
    "orca": (200, 512, "natural", "steps", 0, 1e-4, 5e-4),
    "uno": (200, 256, "balanced", "cosine", 10, 1e-3, 1e-4),
    "rankstats": (200, 128, "balanced", "steps", 0, 1e-4, 1e-4),
}


def config_of(method, preset, protocol="published"):
    return load_config(preset=preset, values={"method": method, "protocol": protocol})


@pytest.mark.parametrize("preset", [*BENCHMARKS, *FEW_LABELS])
@pytest.mark.parametrize("method", TRAINING)
def test_training(method, preset):
    config = config_of(method, preset)
    data, optim = config.data, config.optim
    found = (optim.epochs, data.batch_size, data.sampling, optim.schedule, optim.warmup_epochs, optim.min_lr)
    assert (*found, optim.weight_decay) == TRAINING[method]
    assert METHODS[method](config).epochs() == {method: 200}
    assert optim.momentum == 0.9
    assert (config.model.prompts, config.model.train_blocks) == (0, 1)
    fine_grained = preset in ("cub", "cars", "aircraft", "herbarium19")
    assert optim.lr == (0.001 if method == "rankstats" and fine_grained else 0.1)


@pytest.mark.parametrize("preset", [*BENCHMARKS, *FEW_LABELS])
@pytest.mark.parametrize("method", TRAINING)
def test_the_last_epoch_is_reported_after_training_on_all_labels(method, preset):
    config = config_of(method, preset)
    assert config.selection.by == "last"  # no label is held out
    assert config == config_of(method, preset, "default").model_copy(
        update={"protocol": "published", "selection": config.selection}
    )


@pytest.mark.parametrize("method", TRAINING)
def test_assignment(method, stage_of):
    """GCD by semi-supervised k-means with 100 starts, the others by their classifier over all categories."""
    config, network = config_of(method, "cub"), stage_of(method).network
    assignment = METHODS[method](config).assignment(network)
    if method == "gcd":
        assert isinstance(assignment, KMeansAssignment)
        assert assignment.labels_in_centroids
        assert (config.clustering.n_init, config.clustering.max_iter, config.clustering.tol) == (100, 200, 1e-4)
    else:
        assert isinstance(assignment, ClassifierAssignment)
        assert network.classify(torch.eye(16)[:3]).shape == (3, 5)


def test_contrastive_terms_of_gcd_and_simgcd():
    for method in ("gcd", "simgcd"):
        loss = config_of(method, "cub").loss
        assert (loss.alpha, loss.self_temperature, loss.supervised_temperature) == (0.35, 1.0, 0.07)


@pytest.mark.parametrize(
    ("preset", "weight"),
    [*zip(BENCHMARKS, (1, 4, 1, 2, 1, 1, 1), strict=True), *((name, 4) for name in FEW_LABELS), ("quick", 2)],
)
def test_simgcd(preset, weight):
    settings = load_config(preset=preset, values={"method": "simgcd", "n_classes": 10}).simgcd
    assert settings.entropy_weight == weight
    assert (settings.student_temperature, settings.teacher_temperature_start) == (0.1, 0.07)
    assert (settings.teacher_temperature, settings.teacher_epochs) == (0.04, 30)


@pytest.mark.parametrize("preset", BENCHMARKS)
def test_the_weights_of_simgcd_do_not_change_promptcals_classifier(preset):
    assert load_config(preset=preset, overrides=["affinity.classifier=0.5"]).simgcd.entropy_weight == 2


def test_orca():
    config = config_of("orca", "cub")
    assert config.optim.milestones == (140, 180)
    weights = config.orca
    assert (weights.scale, weights.margin_weight, weights.max_margin) == (10, 1, 0.5)
    assert (weights.pair_weight, weights.entropy_weight) == (1, 1)


def test_uno():
    settings = config_of("uno", "cub").uno
    assert (settings.heads, settings.overclustering, settings.temperature) == (5, 3, 0.1)
    assert (settings.epsilon, settings.iterations, settings.augment) == (0.05, 3, True)


@pytest.mark.parametrize(("preset", "ramp"), [("cifar10", (5, 50)), *((name, (50, 150)) for name in BENCHMARKS[1:])])
def test_rankstats(preset, ramp):
    config = config_of("rankstats", preset)
    assert config.optim.milestones == (85, 170)  # StepLR(170), stepped twice an epoch
    assert (config.rankstats.top, config.rankstats.consistency, config.rankstats.ramp_epochs) == (5, *ramp)


@pytest.mark.parametrize("method", TRAINING)
def test_the_values_of_preset_quick_win_over_those_of_the_method(method):
    config = load_config(preset="quick", values={"method": method, "n_classes": 10})
    assert (config.data.batch_size, config.optim.epochs) == (64, 8)
    assert (config.optim.schedule, config.optim.warmup_epochs) == ("cosine", 0)


def test_settings_of_a_preset_given_as_a_mapping_win_over_those_of_the_method():
    preset = {"n_classes": 7, "data": {"batch_size": 32}, "simgcd": {"entropy_weight": 3}}
    config = load_config(preset=preset, values={"method": "orca"})
    assert (config.data.batch_size, config.data.sampling) == (32, "natural")
    assert load_config(preset=preset, values={"method": "simgcd"}).simgcd.entropy_weight == 3
