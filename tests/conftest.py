"""Small real problems shared by the tests."""

import dataclasses
import json
import os
import shutil
import signal
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the hub's client is imported: no test may use the network
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch is imported before promptcal here, of which a fit warns
# Before torch is imported: on some virtual machines the AMX instructions of bf16 products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from promptcal import cli
from promptcal.data import embedded_set
from promptcal.data.benchmarks import BENCHMARKS, Layout, Split
from promptcal.data.images import ImageSet
from promptcal.methods import METHODS
from promptcal.methods.base import build_network, build_vit
from promptcal.training.loop import Loop

# The included backbone and images, reduced so that a whole fit takes seconds.
COMMON = (
    "model.backbone=vit_tiny_patch4_32.promptcal",
    "model.image_size=8",
    "model.head_hidden=32",
    "model.head_bottleneck=16",
    "model.head_prototypes=64",
    "data.batch_size=16",
    "optim.lr=0.01",
    "optim.epochs=2",
    "clustering.n_init=5",
    "clustering.readout=kmeans",
    "selection.n_init=3",
    "selection.keep=trained",
)
QUICK = (
    *COMMON,
    "selection.validate_every=1",
    "warmup.epochs=2",
    "affinity.epochs=2",
    "affinity.k=5",
    "affinity.memory=64",
    "affinity.negatives=32",
)

# Fixtures have no doctests. Several files called conftest cannot be collected as modules.
collect_ignore_glob = ["*conftest.py"]

# Files with long tests start first, so that no process is left with one of them at the end.
SLOW_FILES = (
    "test_code_of_pages",
    "test_torchrun", "test_resume", "test_previous_run", "test_browser", "test_own_packages", "test_making",
    "test_kills", "test_disk", "test_fault_schedule", "test_planted_links", "test_trained_readout",
    "test_methods", "test_cli", "test_figures", "test_precision", "test_demo",
    "test_inductive", "test_distributed", "test_onnx_model", "test_benchmark_commands", "test_validation",
    "test_first_result", "test_labelling_rounds", "test_broken_files", "test_cache",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    order = {f"{name}.py": number for number, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def common_settings() -> tuple[str, ...]:
    """For any method; a method with one stage trains two epochs."""
    return COMMON


@pytest.fixture(scope="session")
def quick_settings() -> tuple[str, ...]:
    """For PromptCAL."""
    return QUICK


@pytest.fixture(scope="session")
def whole_size_settings() -> tuple[str, ...]:
    """For PromptCAL, with images large enough for its clusters to be meaningful."""
    return (*QUICK, "model.image_size=32")


@pytest.fixture(scope="session")
def small_set() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """48 real images of 4 classes, their classes, and labels for half of classes 0 and 1 (-1 elsewhere)."""
    data = embedded_set("train")
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:12] for c in range(4)])
    truth = data.labels[chosen]
    labels = np.where((truth < 2) & (np.arange(48) % 2 == 0), truth, -1)
    return data.images[chosen], truth, labels


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory, small_set):
    """The small set as files, with labels.csv beside them."""
    root = tmp_path_factory.mktemp("images")
    images, _, labels = small_set
    lines = ["path,label"]
    for i, image in enumerate(images):
        Image.fromarray(image).save(root / f"{i:03d}.png")
        if labels[i] >= 0:
            lines.append(f"{i:03d}.png,class {labels[i]}")
    (root / "labels.csv").write_text("\n".join(lines))
    return root


@pytest.fixture
def few_images(monkeypatch, request):
    """The benchmarks called mini have 8 images of each class, or as many as the parameter says, so a fit is short."""
    of_a_class = getattr(request, "param", 8)

    def read(place, test):
        data = embedded_set("test" if test else "train")
        chosen = np.concatenate([np.flatnonzero(data.labels == c)[:of_a_class] for c in range(10)])
        return Split(ImageSet.of(data.images[chosen]), data.labels[chosen], data.classes)

    layout = Layout("cifar10_mini.npz", read, embedded=True)
    for name in BENCHMARKS.names():
        if name.startswith("mini"):
            few = dataclasses.replace(BENCHMARKS[name], n_images=10 * of_a_class, layouts=(layout,))
            monkeypatch.setitem(BENCHMARKS._registered, name, few)


@pytest.fixture(scope="session")
def pretrained_network():
    """``pretrained_network(config)``: the network that a fit with two known classes starts from."""

    def build(config):
        method = METHODS[config.method](config)
        return build_network(method, build_vit(method, pretrained=True), n_known=2)

    return build


@pytest.fixture
def interrupted_at(monkeypatch):
    """``interrupted_at(n)``: press Ctrl-C in the n-th training step; returns the list of completed steps."""

    def interrupt(n):
        step, done = Loop.step, []

        def step_then_interrupt(self, *given):
            step(self, *given)
            done.append(len(done) + 1)
            if done[-1] == n:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Loop, "step", step_then_interrupt)
        return done

    return interrupt


@pytest.fixture(scope="session")
def outcome():
    """``outcome(run)``: everything a run computed: records without times, weights, embeddings, assignments."""

    def read(run_folder):
        records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            record.pop("seconds")
        weights = {k: v.numpy().tobytes() for k, v in load_file(run_folder / "model.safetensors").items()}
        return {
            "records": records,
            "weights": weights,
            "embeddings": np.load(run_folder / "embeddings.npy").tobytes(),
            "assignments": (run_folder / "assignments.csv").read_text(),
        }

    return read


@pytest.fixture
def promptcal(monkeypatch, capsys):
    """Call the command line; returns exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["promptcal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One headless browser for a module; its downloads go to `browser.downloads`."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt-get install -y chromium chromium-driver")
    from selenium import webdriver

    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(downloads), "download.prompt_for_download": False}
    )
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    session.downloads = downloads
    yield session
    session.quit()
