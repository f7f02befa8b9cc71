"""One ONNX file that computes what `predict` computes from cropped images. It is compared with PyTorch when written.

Prompts, normalisation, centroids or classifier, and temperature are part of the file. The preprocessing that the caller
must do is in a JSON file next to it: upright RGB, shorter side resized (bicubic), centre crop, values 0 to 255 as
float32.
"""

import contextlib
import io
import logging
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal._version import __version__
from promptcal.data import ImageSet, View, embedded_set
from promptcal.data.store import decode
from promptcal.data.views import Normalise
from promptcal.discovery.heads import LinearHead
from promptcal.discovery.partition import centroid_cosines
from promptcal.errors import RunError
from promptcal.run import Run
from promptcal.runtime import files
from promptcal.runtime.progress import working

OUTPUTS = ("embedding", "scores", "probabilities", "cluster", "similarity")
_TOLERANCE = 1e-3  # a larger difference is no rounding error
_N_CHECKED_IMAGES = 16
_OPSET = 18
_SCORES = {"cosines": "cosines with the centroids", "outputs": "outputs of the classifier"}
_MAX_BATCH_SIZE = 2**20  # torch 2.6 requires a limit


class InferenceModule(nn.Module):
    """From pixels (n x 3 x side x side, 0 to 255) to the outputs of `predict`, in float32."""

    scale: Tensor
    shift: Tensor
    centroids: Tensor
    columns: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.network = run.network
        self.network.vit.set_compute_dtype(torch.float32)
        self.assignment = run.assignment
        self.temperature = run.calibration.temperature
        _, mean, std = run.network.vit.preprocessing
        normalise = Normalise(mean, std, torch.device("cpu"))
        self.register_buffer("scale", normalise.scale)
        self.register_buffer("shift", normalise.shift)
        self.register_buffer("centroids", run.centroids)
        self.register_buffer("columns", run.columns)
        self.head = None if run.head is None else LinearHead(*(part.clone() for part in run.head))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        embedding = F.normalize(self.network.vit(pixels * self.scale + self.shift).cls.float(), dim=1)
        scores = self.assignment.scores(embedding, self)
        cluster = self.assignment.choose(embedding, scores, self.centroids)
        similarity = centroid_cosines(embedding, self.centroids).max(dim=1).values
        return embedding, scores, torch.softmax(scores / self.temperature, dim=1), cluster, similarity


def write_onnx(run: Run, output: Path, console: Console) -> None:
    """Write the ONNX file, and a JSON file next to it that describes inputs, outputs and accuracy."""
    if not run.method.takes_images:
        raise RunError(f"{run.path} is a run on features, so it has no network of images to export; export to csv")
    description_file = output.with_suffix(".json")
    if description_file.exists():
        raise RunError(f"the description {description_file} exists already; choose another --output")
    _require_packages()
    if run.device.type != "cpu":
        run = Run(run.path, "cpu")
    differences: dict[str, float] = {}

    def write(temporary: Path) -> None:
        with working(console, "exporting"):
            _export(InferenceModule(run).eval(), run.network.vit.preprocessing.image_size, temporary)
        with working(console, "checking against PyTorch"):
            differences.update(_compare(run, temporary))

    files.write_with(output, write)
    files.write_json(description_file, _description(run, differences))
    found = f"Largest difference from PyTorch on {_N_CHECKED_IMAGES} images: {max(differences.values()):.1e}"
    console.print(found, highlight=False)


def _export(module: InferenceModule, side: int, path: Path) -> None:
    n = torch.export.Dim("n", min=1, max=_MAX_BATCH_SIZE)
    # the exporter prints, logs and warns a lot
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), ExitStack() as stack, torch.no_grad():
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)  # the previous level, at the end
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                module,
                (torch.zeros(2, 3, side, side),),
                os.fspath(path),
                input_names=["pixels"],
                output_names=list(OUTPUTS),
                dynamic_shapes={"pixels": {0: n}},
                dynamo=True,
                external_data=False,
                opset_version=_OPSET,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = (str(error.__cause__ or error).strip().splitlines() or ["no reason given"])[0]
            message = f"torch cannot export this network to ONNX ({reason}); try another version of torch"
            raise RunError(message) from error


def _compare(run: Run, path: Path) -> dict[str, float]:
    """The largest absolute difference of each output on real images, in a batch of 1 and a batch of the others."""
    images = embedded_set("test").images[:_N_CHECKED_IMAGES]
    features = run.embed(images, progress=False)[1]
    scores, cluster, similarity = run.scores(features)
    probabilities = torch.softmax(scores / run.calibration.temperature, dim=1)
    expected = dict(zip(OUTPUTS, (features, scores, probabilities, cluster, similarity), strict=True))
    parts = [run_onnx(path, part) for part in np.split(preprocess(run, images), [1])]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in OUTPUTS}
    differences = {
        name: float(np.abs(outputs[name] - expected[name].numpy()).max()) for name in OUTPUTS if name != "cluster"
    }
    changed = int((outputs["cluster"] != cluster.numpy()).sum())
    if changed or not all(difference <= _TOLERANCE for difference in differences.values()):  # NaN is refused, too
        raise RunError(
            f"the ONNX file differs from PyTorch by {max(differences.values()):.1e} and in {changed} clusters, so it "
            "was deleted; try other versions of torch and onnxscript"
        )
    return differences


def run_onnx(path: Path, pixels: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs by name, computed by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"pixels": pixels}), strict=True))


def preprocess(run: Run, images: Any) -> np.ndarray:
    """The input of the ONNX file for these images: upright, resized and cropped as in `predict`."""
    side, resize = run.network.vit.preprocessing.image_size, run.info.resize
    store, kept, _ = decode(ImageSet.of(images), resize)
    view = View(store, side, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), resize=resize)
    return torch.round(255 * view.centre(torch.arange(len(kept)))).numpy()


def _description(run: Run, differences: dict[str, float]) -> dict[str, Any]:
    side, mean, std = run.network.vit.preprocessing
    return {
        "promptcal": __version__,
        "input": {
            "name": "pixels",
            "shape": ["n", 3, side, side],
            "type": "float32",
            "preprocessing": [
                "RGB, rotated upright by the EXIF tag",
                f"shorter side resized to {run.info.resize} pixels (bicubic, antialiased; the longer side rounded "
                "down)",
                f"centre crop of {side} x {side}",
                "values 0 to 255, channels first; normalisation is part of the network",
            ],
            "normalisation_in_network": {"mean": mean, "std": std},
        },
        "outputs": {
            "embedding": "L2-normalised class token",
            "scores": _SCORES[run.assignment.score_kind],
            "probabilities": "softmax of the scores at the calibrated temperature",
            "cluster": "number of the category",
            "similarity": "cosine with the nearest centroid; below the threshold the image is none of these categories",
        },
        "categories": run.names,
        "known": run.known,
        "temperature": run.calibration.temperature,
        "threshold": run.calibration.threshold,
        "largest_difference_from_pytorch": differences,
    }


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RunError(f"exporting to ONNX needs {error.name}; pip install 'promptcal[onnx]'") from error
