"""ORCA: margin, partners, pairwise term and uncertainty against loops."""

import math

import pytest
import torch
from torch.nn import functional as F
from training_step import LABELS as STEP_LABELS
from training_step import cosine, entropy_of_mean, one_step, softmax

from promptcal.methods.orca import margin_cross_entropy, pairwise_loss, positive_partners

LABELS = [0, -1, 1, 0, -1, 1, -1]


def test_the_margin_equals_the_formula():
    cosines = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    losses = []
    for row, y in zip(cosines.tolist(), LABELS, strict=True):
        if y >= 0:
            right = math.exp(10 * (row[y] + 0.3))
            losses.append(-math.log(right / (right + sum(math.exp(10 * c) for k, c in enumerate(row) if k != y))))
    found = margin_cross_entropy(cosines, torch.tensor(LABELS), 0.3, 10.0)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_uncertainty_holds_the_supervised_loss_back():
    cosines = torch.rand(7, 3, generator=torch.Generator().manual_seed(1))
    losses = [margin_cross_entropy(cosines, torch.tensor(LABELS), m, 10.0).item() for m in (0.0, 0.2, 0.5)]
    assert losses == sorted(losses, reverse=True)


def test_partners_are_of_the_class_or_the_nearest():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 4, generator=generator)
    images = torch.arange(7)
    drawn = set()
    for seed in range(20):
        partners = positive_partners(features, torch.tensor(LABELS), images, torch.Generator().manual_seed(seed))
        for i, y in enumerate(LABELS):
            others = [j for j in range(7) if j != i]
            if y >= 0:
                assert LABELS[partners[i]] == y
                assert partners[i] != i
            else:
                assert partners[i] == max(
                    others, key=lambda j, i=i: F.cosine_similarity(features[i], features[j], dim=0).item()
                )
        drawn.add(tuple(partners.tolist()))
    assert len(drawn) == 1  # two images a class leave no choice


def test_partners_of_a_larger_class_are_drawn_evenly():
    labels = torch.zeros(5, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(5, 5)
    for _ in range(2000):
        partners = positive_partners(torch.ones(5, 2), labels, torch.arange(5), generator)
        counts[torch.arange(5), partners] += 1
    assert counts.diagonal().sum() == 0
    off_diagonal = counts[~torch.eye(5, dtype=torch.bool)]
    assert off_diagonal.min() > 400  # 500 expected, standard deviation 19
    assert off_diagonal.max() < 600


def test_a_copy_of_an_image_is_no_partner_and_a_lone_one_is_its_own():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    copies = torch.tensor([4, 4, 9])
    generator = torch.Generator().manual_seed(0)
    assert positive_partners(features, torch.full((3,), -1), copies, generator).tolist() == [2, 2, 0]
    assert positive_partners(features, torch.tensor([0, 0, 1]), copies, generator).tolist() == [0, 1, 2]


def test_the_pairwise_loss_equals_the_loop():
    p = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    partners = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), dim=1)
    products = [
        sum(a * b for a, b in zip(x, y, strict=True)) for x, y in zip(p.tolist(), partners.tolist(), strict=True)
    ]
    expected = -sum(math.log(product) for product in products) / 4
    assert pairwise_loss(p, partners).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_equals_its_parts(stage_of, batch_of):
    stage, batch = stage_of("orca", "orca.pair_weight=0.5", "orca.entropy_weight=2"), batch_of(LABELS)
    features, cosines = (t.detach() for t in stage.network(batch.views))
    p = torch.softmax(10 * cosines, dim=1)
    stage.before_epoch(0)
    uncertainty = min(0.5, mean_uncertainty(stage.network, stage.unlabelled_features()))
    generator = torch.Generator().manual_seed(0)
    partners = positive_partners(features[:7], batch.labels[:7], batch.indices[:7], generator)
    pairs = -sum(math.log((p[i] @ p[7 + partners[i]]).item()) for i in range(7)) / 7
    mean = p[:7].mean(dim=0)
    entropy = -sum(m * math.log(m) for m in mean.tolist())
    supervised = margin_cross_entropy(cosines[:7], batch.labels[:7], uncertainty, 10.0).item()
    found = stage.step(batch, 0.0)
    assert found.loss.item() == pytest.approx(supervised + 0.5 * pairs - 2 * entropy, rel=1e-4)
    assert found.logs["uncertainty"].item() == pytest.approx(uncertainty, rel=1e-5)


def mean_uncertainty(network, features):
    cosines = [[F.cosine_similarity(f, w, dim=0).item() for w in network.classifier.prototypes] for f in features]
    powers = [[math.exp(10 * c) for c in row] for row in cosines]
    return sum(1 - max(row) / sum(row) for row in powers) / len(powers)


def test_uncertainty_is_measured_on_all_unlabelled_images_before_each_epoch(stage_of, batch_of):
    stage = stage_of("orca", "orca.max_margin=1")
    features = stage.unlabelled_features()
    for epoch in range(2):
        expected = mean_uncertainty(stage.network, features)
        stage.before_epoch(epoch)
        for _ in range(2):  # no step changes it
            result = stage.step(batch_of(LABELS), float(epoch))
            assert result.logs["uncertainty"].item() == pytest.approx(expected, rel=1e-5)
        result.loss.backward()
        with torch.no_grad():
            for parameter in stage.network.trained_parameters().values():
                parameter -= 0.5 * parameter.grad
    assert mean_uncertainty(stage.network, features) != pytest.approx(expected, rel=1e-3)
    resumed = stage_of("orca", "orca.max_margin=1")
    resumed.load_state_dict(stage.state_dict())
    assert resumed.step(batch_of(LABELS), 1.5).logs["uncertainty"].item() == pytest.approx(expected, rel=1e-5)


def test_without_unlabelled_images_there_is_no_margin(stage_of, batch_of):
    stage = stage_of("orca")
    stage.unlabelled_features = lambda: torch.empty(0, 16)
    stage.before_epoch(0)
    assert stage.step(batch_of([0, 1, 0, 1]), 0.0).logs["uncertainty"] == 0


def test_prototypes_start_with_norm_one(stage_of):
    norms = stage_of("orca").network.classifier.prototypes.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(5))


@pytest.mark.parametrize("max_margin", [0.1, 0.5])
def test_a_step_equals_the_equations(tmp_path, max_margin):
    step = one_step(tmp_path, "orca", f"orca.max_margin={max_margin}")
    network, n = step.before, len(STEP_LABELS)
    labels = step.batch.labels[:n].tolist()
    centres = step.view.centre((STEP_LABELS < 0).nonzero().flatten())
    uncertainty = mean_uncertainty(network, network.vit(centres).cls)
    assert 0.1 < uncertainty < 0.5
    margin = min(max_margin, uncertainty)
    embeddings = network.vit(step.batch.views).cls
    cosines = [[cosine(f, w) for w in network.classifier.prototypes] for f in embeddings]
    p = [softmax([10 * c for c in row]) for row in cosines]
    supervised, pairs = [], []
    for i, y in enumerate(labels):
        others = [j for j in range(n) if j != i]
        if y >= 0:
            right = (10 * (cosines[i][y] + margin)).exp()
            wrong = sum((10 * c).exp() for k, c in enumerate(cosines[i]) if k != y)
            supervised.append(-(right / (right + wrong)).log())
            (partner,) = [j for j in others if labels[j] == y]
        else:
            partner = max(others, key=lambda j, i=i: cosine(embeddings[i], embeddings[j]).item())
        pairs.append(-sum(a * b for a, b in zip(p[i], p[n + partner], strict=True)).log())
    loss = sum(supervised) / len(supervised) + sum(pairs) / n - entropy_of_mean(p[:n])
    step.check(loss, lr=0.1)
