"""The presets of the benchmarks, and the commands `datasets` and `benchmark`."""

import io
import json
import re
from importlib import resources

import pytest
import yaml
from benchmark_trees import cub_tree
from PIL import Image

from promptcal import api
from promptcal.config.names import preset_names
from promptcal.data import embedded_set
from promptcal.data.benchmarks import benchmark_names, get_benchmark
from promptcal.errors import PromptCALWarning
from promptcal.methods import load_config

TABLE = {  # classes, epochs 1 + 2, K, q, M / negatives, published All / Known / New
    "cifar10": (10, 200, 70, 10, 0.5, 4096, 1024, "97.9 / 96.6 / 98.5"),
    "cifar100": (100, 200, 70, 10, 0.5, 4096, 1024, "81.2 / 84.2 / 75.3"),
    "imagenet100": (100, 200, 70, 10, 0.5, 4096, 1024, "83.1 / 92.7 / 78.3"),
    "cub": (200, 200, 100, 5, 0.8, 4096, 1024, "62.9 / 64.4 / 62.1"),
    "cars": (196, 200, 100, 5, 0.8, 4096, 1024, "50.2 / 70.1 / 40.6"),
    "aircraft": (100, 200, 100, 10, 0.8, 4096, 1024, "52.2 / 52.2 / 52.3"),
    "herbarium19": (683, 200, 100, 7, 0.8, 20000, 5000, "37.0 / 52.0 / 28.9"),
    "cifar100-c50-l10": (100, 200, 70, 5, 0.5, 4096, 1024, "68.9 / 77.5 / 64.7"),
    "cifar100-c25-l50": (100, 200, 70, 5, 0.5, 4096, 1024, "65.7 / 76.9 / 63.8"),
    "cifar100-c10-l50": (100, 200, 70, 5, 0.5, 4096, 1024, "53.2 / 79.3 / 51.7"),
}


def test_every_transductive_benchmark_has_a_preset():
    transductive = {name for name in benchmark_names() if not get_benchmark(name).inductive}
    assert set(TABLE) == {name for name in transductive if get_benchmark(name).preset == name}
    assert {get_benchmark(name).preset for name in transductive - set(TABLE)} == {"quick"}
    assert set(TABLE) <= set(preset_names())
    assert {get_benchmark(name).preset for name in benchmark_names()} == {*TABLE, "quick"}
    assert all(get_benchmark(f"{name}-inductive").preset == get_benchmark(name).preset for name in ("cub", "mini"))


@pytest.mark.parametrize("name", TABLE)
def test_presets_are_the_published_table(name):
    config = load_config(preset=name)
    affinity = config.affinity
    found = (config.n_classes, config.warmup.epochs, affinity.epochs, affinity.k, affinity.quantile, affinity.memory)
    assert (*found, affinity.negatives) == TABLE[name][:-1]
    assert config.n_classes == get_benchmark(name).n_classes


@pytest.mark.parametrize("name", TABLE)
def test_presets_change_nothing_else(name):
    left_out = {"warmup": True, "affinity": True}
    configs = [load_config(preset=preset, values={"n_classes": 3}) for preset in (name, None)]
    assert configs[0].model_dump(exclude=left_out) == configs[1].model_dump(exclude=left_out)


@pytest.mark.parametrize("name", TABLE)
def test_presets_say_how_to_run_them_and_what_to_expect(name):
    text = (resources.files("promptcal.config") / "presets" / f"{name}.yaml").read_text("utf-8")
    header = text[: text.index("\nn_classes")]
    assert f"promptcal benchmark {name} --root" in header
    assert TABLE[name][-1] in header
    steps = int(re.search(r"(\d+) steps an epoch", header)[1])
    settings = yaml.safe_load(text)
    minutes = steps * settings["warmup"]["epochs"] * 0.0519 / 60
    said, unit = re.search(r"time      ([\d.]+) (hours|minutes) \+", header).groups()
    assert float(said) * (60 if unit == "hours" else 1) == pytest.approx(minutes, rel=0.05)


@pytest.mark.parametrize("given", ["option", "environment"])
def test_datasets_lists_every_benchmark_and_where_it_was_searched(promptcal, tmp_path, monkeypatch, given):
    (tmp_path / "CUB_200_2011").mkdir()
    monkeypatch.setenv("PROMPTCAL_DATA", str(tmp_path))
    code, out, _ = promptcal("datasets", *(["--root", tmp_path] if given == "option" else []))
    assert code == 0
    rows = {cells[0]: cells[1:] for cells in (line.strip("│ ").split() for line in out.splitlines() if "│" in line)}
    rows = {name: [c for c in cells if c != "│"] for name, cells in rows.items()}
    assert set(benchmark_names()) <= set(rows)
    assert rows["cub"] == ["5,994", "200", "100", "50%", "present"]
    assert rows["cifar100-c50-l10"] == ["50,000", "100", "50", "10%", "absent"]
    assert rows["herbarium19-inductive"] == ["~34,000", "683", "341", "50%", "absent"]
    assert f"{tmp_path} for" in out
    assert "CUB-200-2011: CUB_200_2011 or cub_train.tar" in out
    assert "ImageNet-100: imagenet or ILSVRC2012 or ILSVRC/Data/CLS-LOC" in out
    assert rows["mini"] == rows["mini-inductive"] == ["1,500", "10", "5", "50%", "present"]
    assert "the embedded CIFAR-10 images: included in the package" in out


IMAGES = embedded_set("train").images


def real_image(i):
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[i]).save(buffer, "PNG")
    return buffer.getvalue()


def test_benchmark_runs_the_method_on_a_tree_in_the_official_layout(promptcal, tmp_path, quick_settings):
    ids = range(1, 401)
    cub_tree(tmp_path, ids, {i: (i - 1) % 200 + 1 for i in ids}, dict.fromkeys(ids, True), real_image)
    one_step_a_stage = ["data.batch_size=201", "warmup.epochs=1", "affinity.epochs=1", "selection.by=last"]
    settings = [*quick_settings, *one_step_a_stage, "clustering.n_init=1", "tensorboard=false"]
    arguments = ["benchmark", "cub", "--root", tmp_path, "--output", tmp_path / "run", "--seed", "3", "-q"]
    arguments += ["--no-report"]
    code, out, err = promptcal(*arguments, *(part for s in settings for part in ("--set", s)))
    assert code == 0, err
    assert "CUB_200_2011 has 400 training images, not the published 5,994" in err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert {"all", "known", "new"} <= results["stages"]["affinity"]["accuracy"].keys()
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["n_images"], info["n_labelled"]) == (400, 100)
    assert info["known_classes"][0].endswith(".Bird")
    assert "new-1" in out


def test_inductive_benchmark_scores_the_test_images_of_the_tree(tmp_path, common_settings):
    ids = range(1, 1001)
    in_training = {i: i <= 800 for i in ids}
    cub_tree(tmp_path, ids, {i: (i - 1) % 200 + 1 for i in ids}, in_training, real_image)
    settings = [*common_settings, "clustering.n_init=1", "tensorboard=false"]
    with pytest.warns(PromptCALWarning, match="not the published"):
        run = api.benchmark(
            name="cub-inductive",
            root=tmp_path,
            method="kmeans",
            output=tmp_path / "run",
            overrides=settings,
            progress=False,
            report=False,
        )
    found = run.directory.results()
    assert found.protocol == "inductive"
    assert found.selected.all == 1.0  # each class has one test image, so any clustering into 200 is perfect
    assert run.info.n_images == 800


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cubs"], "there is no benchmark 'cubs'; choose one of"),
        (["cub"], "CUB-200-2011 is not in"),
        (["cars", "--download"], "Stanford Cars cannot be downloaded"),
        (["cub-inductive"], "CUB-200-2011 is not in"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(promptcal, tmp_path, arguments, message):
    code, _, err = promptcal("benchmark", *arguments, "--root", tmp_path, "--output", tmp_path / "run")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
