"""A folder with what the pages name: photos, labels, features, and a finished run; and fits that take seconds."""

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from promptcal import api
from promptcal.config import layers
from promptcal.data import embedded_set

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))

# What makes a fit take seconds. Everything else is as the page says.
SMALL = {
    "model": {
        "backbone": "vit_tiny_patch4_32.promptcal",
        "image_size": 16,
        "head_hidden": 32,
        "head_bottleneck": 16,
        "head_prototypes": 64,
    },
    "data": {"batch_size": 16},
    "optim": {"epochs": 1, "lr": 0.01},
    "clustering": {"n_init": 2},
    "selection": {"n_init": 2},
    "warmup": {"epochs": 1},
    "affinity": {"epochs": 1, "k": 5, "memory": 64, "negatives": 32},
    "tensorboard": False,
}
PHOTOS, CLASSES = 15, 4  # of a class


@contextmanager
def small_fits():
    """Every fit in this context has the small settings, whatever it asks for."""
    merged = layers.Layers.merged

    def merged_and_small(self, method):
        settings, sections = merged(self, method), method.config_class.model_fields
        images = "features" not in sections  # of images, not of features
        for key, value in SMALL.items():
            if key in sections and (images or key != "model"):
                layers.merge_into(settings, {key: value})
        return settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers.Layers, "merged", merged_and_small)
        yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The folder, once for the session."""
    folder = tmp_path_factory.mktemp("documentation")
    data = embedded_set("train")
    rows, labels, truth = [], ["path,label"], ["path,label"]
    for c in range(CLASSES):
        for i, number in enumerate(np.flatnonzero(data.labels == c)[: PHOTOS + 2]):
            name = f"{data.classes[c]}-{i:02d}.png"
            place = folder / ("photos" if i < PHOTOS else "new-photos")
            place.mkdir(exist_ok=True)
            Image.fromarray(data.images[number]).save(place / name)
            if i < PHOTOS:
                rows.append(name)
                truth.append(f"{name},{data.classes[c]}")
                if c < 2 and i < 8:
                    labels.append(truth[-1])
    named = [*labels, *(row for row in truth[1:] if row.startswith(f"{data.classes[2]}-"))]
    for file, lines in (("labels.csv", labels), ("truth.csv", truth), ("named.csv", named)):
        (folder / file).write_text("\n".join(lines) + "\n")
    with small_fits():
        api.fit(
            images=folder / "photos",
            labels=folder / "labels.csv",
            n_classes=CLASSES,
            output=folder / "run",
            keep="trained",
            progress=False,
        )
    embeddings = np.load(folder / "run" / "embeddings.npy")
    np.save(folder / "embeddings.npy", embeddings)
    (folder / "ids.txt").write_text("\n".join(rows) + "\n")
    for name, part in (("embeddings.parquet", slice(None)), ("new-embeddings.parquet", slice(0, 5))):
        table = {"id": rows[part], "embedding": embeddings[part].tolist()}
        pa.parquet.write_table(pa.table(table), folder / name)
    return folder


@pytest.fixture
def workspace(prepared, tmp_path, monkeypatch):
    """A copy of it as the working directory, with small fits."""
    folder = shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(folder)
    with small_fits():
        yield folder
