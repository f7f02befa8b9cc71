"""SimGCD: the temperature schedule, the swapped targets, and the whole loss against loops."""

import math

import numpy as np
import pytest
import torch
from training_step import contrastive_by_loops, cosine, entropy_of_mean, one_step
from training_step import softmax as softmax_of

from promptcal.config.schema import LossConfig
from promptcal.methods.losses import semi_supervised_terms
from promptcal.methods.parametric import ParametricSettings, self_distillation, teacher_temperature

LABELS = [0, -1, 1, 0, -1]


def test_the_teacher_sharpens_over_thirty_epochs():
    settings = ParametricSettings()
    published = np.concatenate([np.linspace(0.07, 0.04, 30), np.full(170, 0.04)])
    assert [teacher_temperature(settings, e) for e in range(200)] == pytest.approx(published.tolist())
    for short in (0, 1):
        assert teacher_temperature(ParametricSettings(teacher_epochs=short), 1) == 0.04


def softmax(values, temperature):
    powers = [math.exp(v / temperature) for v in values]
    return [p / sum(powers) for p in powers]


def distillation_by_loops(cosines, student, teacher):
    n, total = len(cosines), 0.0
    for i in range(n):
        target, prediction = softmax(cosines[(i + n // 2) % n], teacher), softmax(cosines[i], student)
        total -= sum(t * math.log(p) for t, p in zip(target, prediction, strict=True))
    return total / n


def test_self_distillation_equals_the_loop():
    cosines = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = self_distillation(cosines, cosines, 0.1, 0.05)
    assert found.item() == pytest.approx(distillation_by_loops(cosines.tolist(), 0.1, 0.05), rel=1e-5)


def test_no_gradient_flows_through_the_targets():
    cosines = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    self_distillation(cosines, cosines, 0.1, 0.05).backward()
    p = torch.softmax(cosines.detach() / 0.1, dim=1)
    q = torch.softmax(cosines.detach() / 0.05, dim=1).roll(2, dims=0)
    assert torch.allclose(cosines.grad, (p - q) / 0.1 / 4, atol=1e-6)  # of cross-entropy with fixed targets


@pytest.mark.parametrize(("epochs_done", "teacher"), [(0.0, 0.07), (29.5, 0.04)])
def test_the_loss_equals_the_formula(stage_of, batch_of, epochs_done, teacher):
    stage, batch = stage_of("simgcd", "simgcd.entropy_weight=1.5"), batch_of(LABELS)
    cosines, z = (t.detach() for t in stage.network(batch.views))
    p = [softmax(row, 0.1) for row in cosines.tolist()]
    mean = [sum(column) / len(p) for column in zip(*p, strict=True)]
    entropy = -sum(m * math.log(m) for m in mean)
    labelled = [(row, y) for row, y in zip(p, LABELS * 2, strict=True) if y >= 0]
    classification = -sum(math.log(row[y]) for row, y in labelled) / len(labelled)
    terms = semi_supervised_terms(z @ z.T, batch.labels, LossConfig())
    unsupervised = distillation_by_loops(cosines.tolist(), 0.1, teacher) - 1.5 * entropy + terms.self_supervised.item()
    expected = 0.65 * unsupervised + 0.35 * (classification + terms.supervised.item())
    assert stage.step(batch, epochs_done).loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_classifier_is_the_cosine_with_its_prototypes(stage_of):
    network = stage_of("simgcd").network
    features = torch.nn.functional.normalize(torch.randn(3, 16), dim=1)
    logits = network.classify(features).tolist()
    for i in range(3):
        for k, prototype in enumerate(network.classifier.prototypes):
            cosine = torch.nn.functional.cosine_similarity(features[i], prototype, dim=0).item()
            assert logits[i][k] == pytest.approx(cosine / 0.1, abs=1e-4)


def test_a_step_equals_the_equations(tmp_path):
    """Also without weight decay on biases and norms."""
    step = one_step(tmp_path, "simgcd", "simgcd.entropy_weight=1.5")
    network, labels = step.before, step.batch.labels.tolist()
    embeddings, n = network.vit(step.batch.views).cls, len(labels)
    cosines = [[cosine(f, c) for c in network.classifier.prototypes] for f in embeddings]
    p = [softmax_of([c / 0.1 for c in row]) for row in cosines]
    q = [softmax_of([c.detach() / 0.07 for c in row]) for row in cosines]
    other = [(i + n // 2) % n for i in range(n)]
    unsupervised = -sum(q[other[i]][k] * p[i][k].log() for i in range(n) for k in range(5)) / n
    unsupervised = unsupervised - 1.5 * entropy_of_mean(p)
    labelled = [i for i in range(n) if labels[i] >= 0]
    supervised = -sum(p[i][labels[i]].log() for i in labelled) / len(labelled)
    z = network.projection(embeddings)
    contrastive = contrastive_by_loops(z / z.square().sum(dim=1, keepdim=True).sqrt(), labels)
    loss = 0.65 * (unsupervised + contrastive[0]) + 0.35 * (supervised + contrastive[1])
    step.check(loss, lr=0.1, is_decayed=lambda name: not (name.endswith("bias") or "norm" in name))


def test_the_projection_starts_with_the_values_of_dinos_head(stage_of):
    projection = stage_of("simgcd", "model.head_hidden=512").network.projection
    weights = torch.cat([layer.weight.detach().flatten() for layer in projection[::2]])
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)
    assert all(not layer.bias.any() for layer in projection[::2])


def test_the_prototypes_start_as_a_linear_layer(stage_of):
    prototypes = stage_of("simgcd", n_classes=400).network.classifier.prototypes.detach()
    linear = torch.nn.Linear(16, 400, bias=False).weight.detach()
    for statistic in (torch.amax, torch.amin, torch.std):
        assert statistic(prototypes).item() == pytest.approx(statistic(linear).item(), rel=0.03)
