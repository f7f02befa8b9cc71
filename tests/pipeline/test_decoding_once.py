"""Images are decoded once, also if the number of classes is estimated from them first."""

from collections import Counter

import pytest

from promptcal.api import fit
from promptcal.data import store


@pytest.mark.parametrize("n_classes", [4, "auto"])
def test_each_image_is_decoded_once(tmp_path, monkeypatch, small_set, common_settings, n_classes):
    images, _, labels = small_set
    decoded, load = Counter(), store._load
    monkeypatch.setattr(store, "_load", lambda given, side, i: (decoded.update([i]), load(given, side, i))[1])
    run = fit(
        images=images, labels=labels, n_classes=n_classes, method="kmeans", output=tmp_path / "run", progress=False,
        overrides=(*common_settings, "estimation.max_classes=6", "estimation.n_init=2"), report=False,
    )  # fmt: skip
    assert run.config.n_classes_estimated == (n_classes == "auto")
    assert decoded == dict.fromkeys(range(48), 1)
