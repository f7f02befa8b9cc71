"""UNO+: Sinkhorn's marginals, the swapped targets, the heads, and the whole loss."""

import math

import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as vision
from training_step import cosine, one_step, softmax

from promptcal.methods.uno import augmented, sinkhorn, swapped_targets

LABELS = [0, -1, 1, -1, -1]


def similarities(rows, columns, seed=0):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_sinkhorn_has_the_marginals_it_is_for():
    plan = sinkhorn(similarities(40, 8), 0.05, 500)
    assert torch.allclose(plan.sum(dim=1), torch.ones(40), atol=1e-5)
    assert torch.allclose(plan.sum(dim=0), torch.full((8,), 5.0), atol=1e-3)
    assert torch.allclose(sinkhorn(similarities(40, 8), 0.05, 3).sum(dim=1), torch.ones(40), atol=1e-5)


@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_equals_scaling_columns_and_rows_in_turn(iterations):
    given = similarities(6, 4)
    plan = [[math.exp(s / 0.05) for s in row] for row in given.tolist()]
    for _ in range(iterations):
        sums = [sum(row[k] for row in plan) for k in range(4)]
        plan = [[row[k] / sums[k] for k in range(4)] for row in plan]
        plan = [[value / sum(row) for value in row] for row in plan]
    assert torch.allclose(sinkhorn(given, 0.05, iterations), torch.tensor(plan), atol=1e-5)


def test_sinkhorn_survives_what_would_overflow():
    assert torch.isfinite(sinkhorn(1000 * similarities(5, 3), 0.01, 3)).all()


def test_targets_are_labels_and_the_other_views_assignments():
    cosines = similarities(10, 4)
    targets = swapped_targets(cosines, torch.tensor(LABELS * 2), 0.05, 3)
    unlabelled = [1, 3, 4]
    first, second = sinkhorn(cosines[unlabelled], 0.05, 3), sinkhorn(cosines[[6, 8, 9]], 0.05, 3)
    for view in (0, 5):
        assert torch.equal(targets[view + 0], F.one_hot(torch.tensor(0), 4).float())
        assert torch.equal(targets[view + 2], F.one_hot(torch.tensor(1), 4).float())
    for place, i in enumerate(unlabelled):
        assert torch.equal(targets[i], second[place])
        assert torch.equal(targets[5 + i], first[place])


def test_a_batch_without_unlabelled_images_has_labels_only():
    targets = swapped_targets(similarities(4, 3), torch.tensor([0, 1, 0, 1]), 0.05, 3)
    assert targets.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]


def test_the_loss_is_the_mean_of_the_means_over_heads_and_over_clustering_heads(stage_of, batch_of):
    stage, batch = stage_of("uno", "uno.heads=3", "uno.overclustering=2", "uno.augment=no"), batch_of(LABELS)
    heads, overclustering = stage.network(batch.views)
    assert [h.shape[1] for h in heads] == [5] * 3
    assert [h.shape[1] for h in overclustering] == [2 + 3 * 2] * 3
    losses = []
    for cosines in (*heads, *overclustering):
        targets = swapped_targets(cosines.detach(), batch.labels, 0.05, 3).tolist()
        total = 0.0
        for target, row in zip(targets, cosines.tolist(), strict=True):
            normaliser = sum(math.exp(c / 0.1) for c in row)
            total -= sum(t * math.log(math.exp(c / 0.1) / normaliser) for t, c in zip(target, row, strict=True))
        losses.append(total / 10)
    found = stage.step(batch, 0.0)
    assert found.loss.item() == pytest.approx((sum(losses[:3]) / 3 + sum(losses[3:]) / 3) / 2, rel=1e-4)


def test_the_head_with_the_lowest_loss_is_asked(stage_of, batch_of):
    stage, batch = stage_of("uno", "uno.heads=3", "uno.augment=no"), batch_of(LABELS)
    heads, _ = stage.network(batch.views)
    losses = [stage._cross_entropy(cosines, batch.labels).item() for cosines in heads]
    stage.step(batch, 0.0)
    stage.after_update()
    assert stage.network.head_losses.tolist() == pytest.approx([0.01 * loss for loss in losses], rel=1e-5)
    best = losses.index(min(losses))
    features = F.normalize(stage.network.vit(batch.views).cls, dim=1)
    assert torch.allclose(stage.network.classify(features), heads[best] / 0.1, atol=1e-4)


def test_which_head_is_best_travels_with_the_weights(stage_of):
    network = stage_of("uno").network
    assert "head_losses" in network.trained_parameters()
    assert network.trained_parameters()["head_losses"].grad is None


def augmented_by_torchvision(pixels, draws):
    """Colour jitter with probability 0.5, grey with 0.2, blur with 0.2, each image by its own random numbers."""
    results = []
    for original, (jitter, grey, blur, *amounts, deviation) in zip(pixels, draws.T.tolist(), strict=True):
        image = original
        if jitter < 0.5:
            bright, contrast, saturation, hue = (2 * amount - 1 for amount in amounts)
            image = vision.adjust_contrast(vision.adjust_brightness(image, 1 + 0.4 * bright), 1 + 0.4 * contrast)
            image = vision.adjust_hue(vision.adjust_saturation(image, 1 + 0.2 * saturation), 0.1 * hue)
        if grey < 0.2:
            image = vision.rgb_to_grayscale(image, num_output_channels=3)
        if blur < 0.2:
            image = vision.gaussian_blur(image, [13, 13], [0.1 + 1.9 * deviation] * 2)
        results.append(image)
    return torch.stack(results)


def test_views_are_augmented_as_torchvision_would():
    generator = torch.Generator().manual_seed(0)
    pixels, draws = torch.rand(60, 3, 16, 16, generator=generator), torch.rand(8, 60, generator=generator)
    found = augmented(pixels, draws)
    torch.testing.assert_close(found, augmented_by_torchvision(pixels, draws), rtol=0, atol=2e-5)
    changed = ((found - pixels).abs().amax(dim=(1, 2, 3)) > 1e-4).float().mean()
    assert 0.55 < changed < 0.85  # 1 - 0.5 * 0.8 * 0.8 = 0.68 expected


def test_the_generator_determines_the_augmentation_and_pixels_stay_in_their_range(stage_of, batch_of):
    stage, batch = stage_of("uno"), batch_of(LABELS)
    first, again, other = (
        stage.augmented(batch._replace(generator=torch.Generator().manual_seed(seed))) for seed in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert ((first >= -stage.mean / stage.std - 1e-5) & (first <= (1 - stage.mean) / stage.std + 1e-5)).all()


def test_a_step_equals_the_equations(tmp_path):
    """At the rate of the first warm-up epoch, and with prototypes of norm 1 after it."""
    step = one_step(tmp_path, "uno", "uno.heads=2")
    network, batch, n = step.before, step.batch, len(step.batch.labels)
    labels = batch.labels.tolist()
    _, *statistics = network.vit.preprocessing
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in statistics)
    draws = torch.rand(8, n, generator=batch.generator)
    views = (augmented_by_torchvision(batch.views * std + mean, draws) - mean) / std
    features = F.normalize(network.vit(views).cls, dim=1)
    known = [[cosine(f, w) for w in network.known.prototypes] for f in features]
    unlabelled = [i for i in range(n // 2) if labels[i] < 0]

    def loss_of(head):
        projected = head[:-1](4 * features)  # 4 = sqrt(16), the length that a layer norm gives 16 dimensions
        rows = [k + [cosine(z, w) for w in head[-1].prototypes] for k, z in zip(known, projected, strict=True)]
        targets = {i: [float(k == y) for k in range(len(rows[0]))] for i, y in enumerate(labels) if y >= 0}
        for view, other in ((0, n // 2), (n // 2, 0)):
            plan = [[math.exp(c.item() / 0.05) for c in rows[view + i]] for i in unlabelled]
            for _ in range(3):
                sums = [sum(column) for column in zip(*plan, strict=True)]
                plan = [[value / total for value, total in zip(row, sums, strict=True)] for row in plan]
                plan = [[value / sum(row) for value in row] for row in plan]
            targets |= {other + i: row for i, row in zip(unlabelled, plan, strict=True)}
        p = [softmax([c / 0.1 for c in row]) for row in rows]
        return -sum(t * q.log() for i in range(n) for t, q in zip(targets[i], p[i], strict=True)) / n

    heads, fine = ([loss_of(head) for head in group] for group in (network.heads, network.overclustering))
    step.check(
        (sum(heads) / 2 + sum(fine) / 2) / 2,
        lr=1e-3,
        finish=lambda name, value: F.normalize(value, dim=1) if name.endswith("prototypes") else value,
    )
    prototypes = [p for name, p in step.after.named_parameters() if name.endswith("prototypes")]
    assert len(prototypes) == 5
    assert all(torch.allclose(p.norm(dim=1), torch.ones(len(p))) for p in prototypes)
