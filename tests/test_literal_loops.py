"""The loops that benchmarks/ compares speed with compute the same as the fast code."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.training.stage import Batch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("negatives", [1000, 0])  # more than there are, or none: nothing is drawn
@pytest.mark.parametrize("token", ["cls", "prompt"])
def test_the_affinity_term_written_as_loops_is_the_stages(token, negatives):
    settings = ["affinity.k=6", "affinity.quantile=0.1", "affinity.memory=200"]
    settings.append(f"affinity.negatives={negatives}")
    config = load_config(preset="quick", values={"n_classes": 5}, overrides=settings)
    vit = PromptedViT(config.model.backbone, 2, 1, pretrained=False)
    stage = AffinityStage(ProjectionNetwork(vit, hidden=8, bottleneck=8, prototypes=16), config)
    random = torch.Generator().manual_seed(0)

    def rows(classes):
        """Around class means in few dimensions, so that the density varies."""
        places = F.one_hot(classes, 5) + 0.4 * torch.randn(len(classes), 5, generator=random)
        return F.normalize(F.pad(places, (0, vit.dim - 5)), dim=1)

    kept = torch.arange(200) % 5
    stage.memories[token].push(rows(kept), torch.where(kept < 3, kept, -1), torch.arange(200))
    classes = torch.tensor([0, 1, 3, 4] * 2)
    labels = torch.where(classes < 1, classes, -1)
    batch = Batch(torch.empty(0), labels, torch.arange(4).repeat(2), torch.Generator().manual_seed(1))
    queries, teacher = rows(classes), rows(classes)
    expected = script("literal").literal_affinity_term(stage, token, queries, teacher, batch)
    mined = stage._mine_pairs(teacher, stage.memories[token], batch)
    found = stage._affinity_term(token, queries, teacher, mined)
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-5)
    assert float(found.logs["threshold"]) == pytest.approx(float(expected.logs["threshold"]), rel=1e-5)
    positives, queries_counted = found.logs["positives"].tolist()
    assert positives > queries_counted  # there are enough positives to compare
