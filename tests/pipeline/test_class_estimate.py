"""The number of classes of images: the verb, the command, and `n_classes: auto`."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from promptcal.api import estimate_classes, fit
from promptcal.config.schema import load_config
from promptcal.discovery import count_classes
from promptcal.errors import ConfigError, LabelError, RunError
from promptcal.models import EMBEDDED_BACKBONE, PromptedViT
from promptcal.pipeline import class_count as counting
from promptcal.runtime.seeds import derive_seed

pytestmark = pytest.mark.filterwarnings("ignore:the estimate of:promptcal.errors.PromptCALWarning")
SMALL = ("estimation.n_init=2", "estimation.max_classes=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_set):
    """The small set as PNG files with a label file."""
    root = tmp_path_factory.mktemp("counting")
    (root / "images").mkdir()
    rows = ["path,label"]
    for i, (image, label) in enumerate(zip(small_set[0], small_set[2], strict=True)):
        Image.fromarray(image).save(root / "images" / f"{i:02d}.png")
        rows += [f"{i:02d}.png,class{label}"] if label >= 0 else []
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.fixture(scope="module")
def frozen_features():
    """Embeddings of uint8 images by the embedded backbone, without any of the package's image handling."""

    @torch.no_grad()
    def embed(images):
        vit = PromptedViT(EMBEDDED_BACKBONE, prompts=0).eval()
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in vit.preprocessing[1:])
        pixels = [np.asarray(Image.fromarray(image).resize((36, 36), Image.Resampling.BICUBIC)) for image in images]
        batch = torch.from_numpy(np.stack(pixels)[:, 2:34, 2:34]).permute(0, 3, 1, 2).float() / 255
        return torch.nn.functional.normalize(vit((batch - mean) / std).cls, dim=1)

    return embed


def test_the_verb_counts_in_the_frozen_backbones_embeddings(small_set, frozen_features):
    images, _, labels = small_set
    found = estimate_classes(
        images=images, labels=labels, backbone=EMBEDDED_BACKBONE, max_classes=8,
        overrides=["estimation.n_init=3"], progress=False,
    )  # fmt: skip
    seed = derive_seed(0, "class count")
    expected = count_classes(frozen_features(images), labels, max_classes=8, n_init=3, max_iter=200, seed=seed)
    assert found.n_classes == expected.n_classes
    assert found.bounds == (2, 8)
    for trial, other in zip(found.trials, expected.trials, strict=True):
        assert trial == pytest.approx(other, abs=1e-3)


def test_the_command_shows_and_writes_every_number_tried(promptcal, folder, tmp_path):
    settings = [part for s in SMALL for part in ("--set", s)]
    code, out, err = promptcal(
        "estimate-classes", folder / "images", "--labels", folder / "labels.csv", "--backbone", EMBEDDED_BACKBONE,
        "--output", tmp_path / "curves", "--quiet", *settings,
    )  # fmt: skip
    assert code == 0, err
    count = json.loads((tmp_path / "curves" / "class-count.json").read_text())
    assert f"{count['n_classes']} classes, of which 2 are known (searched 2 to 8)" in out
    with (tmp_path / "curves" / "class-count.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["classes"]) for row in rows] == [trial["n_classes"] for trial in count["trials"]]
    best = max(count["trials"], key=lambda trial: trial["accuracy"])
    for row, trial in zip(rows, count["trials"], strict=True):
        assert float(row["accuracy"]) == pytest.approx(trial["accuracy"], abs=1e-6)
        assert re.search(rf"│ +{trial['n_classes']} │ +{100 * trial['accuracy']:.1f} │", out)
        if trial["n_classes"] == count["n_classes"]:
            assert trial["accuracy"] > best["accuracy"] - 0.1
    assert re.search(rf"│ estimate │ +{count['n_classes']} │", out)
    with Image.open(tmp_path / "curves" / "class-count.png") as picture:
        assert picture.size == (720, 840)
        assert len(np.unique(np.asarray(picture))) > 50  # something is drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-classes", "2"], "more than the 2 known ones"),
        (["--run", "nowhere"], "nowhere is not a run directory"),
        (["--run", "nowhere", "--backbone", "vit_base_patch16_224.dino"], "a run brings its own backbone"),
    ],
)
def test_what_cannot_be_estimated_is_one_sentence(promptcal, folder, arguments, message):
    backbone = [] if "--run" in arguments else ["--backbone", EMBEDDED_BACKBONE]
    code, _, err = promptcal(
        "estimate-classes", folder / "images", "--labels", folder / "labels.csv", *backbone, *arguments, "--quiet"
    )
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_without_labels_there_is_nothing_to_estimate_by(small_set):
    with pytest.raises(LabelError, match="at least 2 classes"):
        estimate_classes(images=small_set[0], backbone=EMBEDDED_BACKBONE, progress=False)


@pytest.fixture(scope="module")
def auto_run(small_set, whole_size_settings, tmp_path_factory):
    def run(output, **options):
        images, _, labels = small_set
        return fit(
            images=images, labels=labels, n_classes="auto", method="kmeans", output=output,
            overrides=(*whole_size_settings, *SMALL), progress=False, **options,
        )  # fmt: skip

    return run


def test_auto_estimates_and_records_the_number(auto_run, small_set, tmp_path):
    run = auto_run(tmp_path / "run")
    images, _, labels = small_set
    expected = estimate_classes(
        images=images, labels=labels, backbone=EMBEDDED_BACKBONE, overrides=SMALL, progress=False
    )
    assert run.config.n_classes == run.info["n_classes"] == expected.n_classes
    assert run.config.n_classes_estimated is run.info["n_classes_estimated"] is True
    assert len(run.names) == expected.n_classes
    written = json.loads((run.path / "class-count.json").read_text())
    assert [trial["n_classes"] for trial in written["trials"]] == [trial.n_classes for trial in expected.trials]
    in_its_network = estimate_classes(images=images, labels=labels, run=run, progress=False)
    assert in_its_network.trials == expected.trials  # k-means trains nothing, so its network is the backbone


def test_a_resumed_run_keeps_its_number(auto_run, tmp_path, monkeypatch):
    run = auto_run(tmp_path / "run")
    run.directory.write_info({**run.info, "status": "running"})
    monkeypatch.setattr(counting, "count_in_backbone", None)  # would fail if it were asked again
    resumed = auto_run(run.path, resume=True)
    assert resumed.config == run.config
    assert (run.path / "class-count.csv").exists()


def test_an_estimated_run_is_not_resumed_with_a_number_given(auto_run, small_set, whole_size_settings, tmp_path):
    run = auto_run(tmp_path / "run")
    run.directory.write_info({**run.info, "status": "running"})
    with pytest.raises(RunError, match="has n_classes_estimated=True; give the same settings"):
        fit(
            images=small_set[0], labels=small_set[2], n_classes=run.config.n_classes, method="kmeans",
            output=run.path, overrides=(*whole_size_settings, *SMALL), resume=True, progress=False,
        )  # fmt: skip


def test_auto_may_come_from_any_layer_and_sees_the_other_settings(tmp_path):
    (tmp_path / "settings.yaml").write_text("n_classes: auto\nseed: 5\n")
    seen = []

    def estimate(config):
        seen.append((config.seed, config.affinity.k))
        return 23

    found = load_config(file=tmp_path / "settings.yaml", overrides=["affinity.k=9"], estimate=estimate)
    assert seen == [(5, 9)]
    assert (found.n_classes, found.n_classes_estimated, found.affinity.k) == (23, True, 9)
    assert load_config(preset="cub", overrides=["n_classes=auto"], estimate=lambda config: 7).n_classes == 7
    with pytest.raises(ConfigError, match="n_classes=auto needs images"):
        load_config(overrides=["n_classes=auto"])


def test_a_number_given_over_an_estimated_one_is_not_an_estimate(tmp_path):
    (tmp_path / "settings.yaml").write_text("n_classes: 23\nn_classes_estimated: true\n")
    assert load_config(file=tmp_path / "settings.yaml").n_classes_estimated
    assert not load_config(file=tmp_path / "settings.yaml", values={"n_classes": 30}).n_classes_estimated
    assert not load_config(file=tmp_path / "settings.yaml", overrides=["n_classes=30"]).n_classes_estimated


def test_fit_takes_auto_or_a_number_and_nothing_else(promptcal, folder, tmp_path):
    code, _, err = promptcal("fit", folder / "images", "--output", tmp_path / "run", "--n-classes", "many")
    assert code == 2
    assert "'many' is neither a whole number nor auto" in err
