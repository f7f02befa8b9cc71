"""A small set as files, the command that fits it, and its result without a fault."""

import itertools
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import SETTINGS, STREAMED, Process
from PIL import Image


@dataclass
class Scene:
    """Images and labels as files, and a folder for a run and the logs of its processes."""

    images: Path
    place: Path
    settings: tuple[str, ...] = SETTINGS

    def __post_init__(self):
        self.output = self.place / "run"
        self._numbers = itertools.count()

    def start(self, *more, verb="fit", fault=None):
        """Start `promptcal fit IMAGES ...`."""
        arguments = [verb, self.output, *more]
        if verb == "fit":
            arguments = ["fit", self.images, "--output", self.output, "--labels", self.images / "labels.csv", *more]
            arguments += ["--n-classes", 4, "--seed", 3, "--quiet"]
            arguments += [word for setting in self.settings for word in ("--set", setting)]
        return Process(arguments, self.place / f"log-{next(self._numbers)}", fault)

    def run(self, *more, verb="fit", fault=None):
        return self.start(*more, verb=verb, fault=fault).end()


def write_images(root, small_set):
    """Half of the small set, with a few labels of two of its four classes."""
    lines = ["path,label"]
    half = [i for i in range(len(small_set[0])) if i % 4 < 2]
    images, labels = small_set[0][half], small_set[2][half]
    for i, image in enumerate(images):
        Image.fromarray(image).save(root / f"{i:03d}.png")
        if labels[i] >= 0:
            lines.append(f"{i:03d}.png,class {labels[i]}")
    (root / "labels.csv").write_text("\n".join(lines))


@pytest.fixture(autouse=True)
def closed_terminal():
    """SIGHUP acts as usual also where the tests run under nohup, which ignores it in every process that they start."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory, small_set):
    root = tmp_path_factory.mktemp("fault-images")
    write_images(root, small_set)
    return root


@pytest.fixture
def scene(image_folder, tmp_path):
    return Scene(image_folder, tmp_path)


@pytest.fixture
def own_images(small_set, tmp_path):
    """A scene whose images may be changed."""
    root = tmp_path / "images"
    root.mkdir()
    write_images(root, small_set)
    return Scene(root, tmp_path)


@pytest.fixture(scope="session")
def undisturbed(image_folder, tmp_path_factory):
    """A fit without a fault: its scene and its events."""
    scene = Scene(image_folder, tmp_path_factory.mktemp("undisturbed"))
    process = scene.start()
    code, words = process.end()
    assert code == 0, words
    return scene, process.events()


@pytest.fixture(scope="session")
def expected_streamed(image_folder, tmp_path_factory, outcome):
    """The result of the shorter fit with STREAMED settings from a store in memory, which must be the same."""
    settings = (*STREAMED, "data.store=memory")
    scene = Scene(image_folder, tmp_path_factory.mktemp("undisturbed-streamed"), settings)
    code, words = scene.run("--no-report")
    assert code == 0, words
    return outcome(scene.output)


@pytest.fixture(scope="session")
def expected(undisturbed, outcome):
    return outcome(undisturbed[0].output)
