"""The ONNX file computes what predict computes, for any number of images."""

import builtins
import json

import numpy as np
import pytest
import torch

from promptcal.api import export, fit
from promptcal.data import embedded_set
from promptcal.errors import RunError
from promptcal.exporters.onnx_model import preprocess

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(
    scope="module", params=[("promptcal", "warmup.epochs=1", "affinity.epochs=0"), ("uno", "optim.epochs=1")]
)
def exported(request, small_set, common_settings, tmp_path_factory):
    """A network with prompts that is clustered, and one with a classifier; both are trained a little."""
    method, *epochs = request.param
    folder = tmp_path_factory.mktemp(method)
    images, _, labels = small_set
    run = fit(
        images=images, labels=labels, n_classes=4, method=method, output=folder / "run", progress=False,
        overrides=[*common_settings, *epochs, "tensorboard=false"], report=False,
    )  # fmt: skip
    path = export(run=run, to="onnx", output=folder / "net.onnx", progress=False)
    return run, path, onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_it_agrees_with_predict_for_any_number_of_images(exported, n):
    run, _, session = exported
    images = embedded_set("test").images[-n:]
    values = session.run(None, {"pixels": preprocess(run, images)})
    outputs = dict(zip([o.name for o in session.get_outputs()], values, strict=True))
    found = run.predict(images, progress=False)
    assert np.abs(outputs["embedding"] - run.embed(images, progress=False)[1].numpy()).max() < 1e-4
    assert np.array_equal(outputs["cluster"], found.clusters)
    rows = np.arange(n)
    assert np.abs(outputs["probabilities"][rows, found.clusters] - found.confidence).max() < 1e-4
    assert np.abs(outputs["probabilities"][rows, found.second] - found.second_confidence).max() < 1e-4
    assert np.abs(outputs["similarity"] - found.similarity).max() < 1e-4
    again = torch.softmax(torch.from_numpy(outputs["scores"]) / run.calibration.temperature, dim=1).numpy()
    assert np.allclose(again, outputs["probabilities"], atol=1e-5)


def test_the_input_is_the_centre_of_the_resized_image(exported):
    """Square images of the stored size: the plain centre crop, pixel for pixel."""
    run, _, _ = exported
    side, resize = run.network.vit.preprocessing.image_size, run.info.resize
    image = np.random.default_rng(0).integers(0, 256, (1, resize, resize, 3), dtype=np.uint8)
    start = round((resize - side) / 2)
    crop = image[0, start : start + side, start : start + side].transpose(2, 0, 1)
    assert np.array_equal(preprocess(run, image)[0], crop.astype(np.float32))


def test_the_description_says_how_to_use_the_file(exported):
    run, path, session = exported
    description = json.loads(path.with_suffix(".json").read_text())
    assert description["input"]["shape"][1:] == session.get_inputs()[0].shape[1:] == [3, 8, 8]
    assert session.get_inputs()[0].type == "tensor(float)"
    assert list(description["outputs"]) == [o.name for o in session.get_outputs()]
    assert description["categories"] == run.names
    assert (description["temperature"], description["threshold"]) == (
        run.calibration.temperature,
        run.calibration.threshold,
    )
    assert 0 <= max(description["largest_difference_from_pytorch"].values()) < 1e-4
    assert {p.name for p in path.parent.glob("net*")} == {"net.onnx", "net.json"}


def test_a_missing_package_and_an_existing_file_are_one_sentence(from_array, tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("precious")
    with pytest.raises(RunError, match="the description .*a.json exists already"):
        export(run=from_array, to="onnx", output=tmp_path / "a.onnx")
    plain = builtins.__import__

    def without(name, *rest):
        if name.startswith("onnxruntime"):
            raise ImportError("no", name="onnxruntime")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RunError, match=r"needs onnxruntime; pip install 'promptcal\[onnx\]'"):
        export(run=from_array, to="onnx", output=tmp_path / "b.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
