"""Every method learns at the scale of the demo. (PromptCAL has a stricter test in `tests/pipeline/test_demo.py`.)"""

import pytest

from promptcal.api import demo


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["promptcal-warmup", "gcd", "simgcd", "orca", "uno", "rankstats"])
def test_the_loss_falls_and_known_classes_beat_frozen_k_means(tmp_path, method):
    run = demo(output=tmp_path / "run", method=method, progress=False, report=False)
    found = run.directory.results()
    assert found.selected.known > found.baselines["kmeans"].known
    losses = [record["loss"] for record in run.records()]
    assert losses[-1] < losses[0]
