"""Images that change while a fit runs: a fit with stored images continues, one with streamed images stops."""

import shutil

import pytest
from harness import STREAMED, Fault


@pytest.mark.parametrize(
    "what", ["change", *(pytest.param(what, marks=pytest.mark.slow) for what in ("remove", "truncate"))]
)
def test_a_streamed_image_that_has_changed(own_images, expected_streamed, outcome, what):
    scene = own_images
    scene.settings = STREAMED
    shutil.copy(scene.images / "007.png", scene.place / "007.png")
    code, words = scene.run("--no-report", fault=Fault("training", what, str(scene.images / "007.png"), nth=2))
    words = " ".join(words.split())
    assert code == 2
    assert "Traceback" not in words
    assert (
        "007.png has changed since the run began" if what == "change" else "007.png was readable when the run"
    ) in words
    assert "--resume" in words
    code, words = scene.run("--resume", "--no-report")
    assert code == 2  # it is still changed
    shutil.copy(scene.place / "007.png", scene.images / "007.png")
    code, words = scene.run("--resume", "--no-report")
    assert code == 0, words
    assert outcome(scene.output) == expected_streamed


def test_stored_images_may_be_removed(own_images, expected, outcome):
    scene = own_images
    code, words = scene.run("--no-report", fault=Fault("training", "remove", str(scene.images / "007.png")))
    assert code == 0, words
    assert outcome(scene.output) == expected
