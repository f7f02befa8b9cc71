"""Every method learns at the demo's scale: its loss falls, and known classes come out above frozen k-means.

(Whole PromptCAL is held to more in `tests/test_demo.py`.)
"""

import json

import pytest

from promptcal.api import demo, results


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["promptcal-warmup", "gcd", "simgcd", "orca", "uno", "rankstats"])
def test_the_loss_falls_and_known_classes_beat_frozen_k_means(tmp_path, method):
    run = demo(output=tmp_path / "run", method=method, progress=False)
    found = results(run)
    assert found["scores"]["selected"]["known"] > found["kmeans"]["accuracy"]["known"]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records]
    assert losses[-1] < losses[0]
