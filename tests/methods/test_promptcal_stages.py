"""The losses of both stages against loops written from the equations, on a network small enough for loops."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional as F

from promptcal.config.schema import LossConfig
from promptcal.data import ImageStore, View
from promptcal.methods import METHODS, load_config
from promptcal.methods.base import StageContext
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.graph.pairs import sample_negatives
from promptcal.methods.promptcal.settings import PAPER, RELEASE
from promptcal.methods.promptcal.warmup import Distillation, WarmupStage, distillation_weight
from promptcal.models import ProjectionNetwork, PromptedViT
from promptcal.training.stage import Batch

B, MEMORY, CLASSES = 4, 12, 3
# the whole budget of negatives and more than there are keys: every key that is not a positive is a negative
RECIPE = replace(RELEASE, threshold_diagonal=False, beta_ramp_epochs=0.0, subtract_positives=False)


def widen(projection):
    """The output of a head itself (n x prototypes)."""
    return torch.nn.functional.normalize(projection.bottleneck @ projection.prototypes.T, dim=1)


def tiny_network(prompts=3, supervised=2):
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0)
    return ProjectionNetwork(PromptedViT(vit, prompts, supervised), hidden=12, bottleneck=6, prototypes=20)


def a_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2 * B, 3, 8, 8, generator=generator)
    labels = torch.tensor([0, -1, 1, 0]).repeat(2)
    indices = torch.tensor([5, 6, 7, 8]).repeat(2)
    return Batch(images, labels, indices, torch.Generator().manual_seed(seed))


def log_share(similarities, positives, anchors, temperature):
    """Minus the mean over positives of log(exp(s+/t) / sum over anchors exp(s/t)), one query."""
    total = sum(math.exp(similarities[a] / temperature) for a in anchors)
    return -sum(math.log(math.exp(similarities[p] / temperature) / total) for p in positives) / len(positives)


def semi_supervised(queries, keys, labels):
    """The means of the self-supervised term at temperature 1 and the supervised term at 0.07."""
    n = len(labels)
    similarity = (queries @ keys.T).tolist()
    others = [[j for j in range(n) if j != i] for i in range(n)]
    self_term = sum(log_share(similarity[i], [(i + B) % n], others[i], 1.0) for i in range(n)) / n
    labelled = [i for i in range(n) if labels[i] >= 0]
    sup_term = sum(
        log_share(
            similarity[i],
            [j for j in labelled if j != i and labels[j] == labels[i]],
            [j for j in labelled if j != i],
            0.07,
        )
        for i in labelled
    ) / len(labelled)
    return self_term, sup_term


def test_warmup_loss_equals_the_loops():
    network = tiny_network()
    batch = a_batch()
    expected = 0.0
    for token, weight in (("cls", 1.0), ("prompt", 0.35)):
        wide = widen(network(batch.views)[token].z).detach()
        self_term, sup_term = semi_supervised(wide, wide, batch.labels.tolist())
        expected += weight * (0.65 * self_term + 0.35 * sup_term)
    found = WarmupStage("warmup", network, LossConfig()).step(batch, 0.0)
    assert found.loss.item() == pytest.approx(expected, rel=1e-4)


def affinity_config(**affinity):
    settings = {"memory": MEMORY, "k": 3, "quantile": 0.3, "negatives": 100, **affinity}
    return load_config(values={"n_classes": CLASSES, "affinity": settings})


def affinity_stage(network=None, recipe=RECIPE, truth=None, n_known=0, **affinity):
    network = tiny_network() if network is None else network
    return AffinityStage(network, affinity_config(**affinity), truth, n_known, recipe=recipe)


def trained_stage(network=None, recipe=RECIPE, **affinity):
    """A stage after two steps: its memory is filled, and its student differs from its teacher."""
    stage = affinity_stage(network, recipe, **affinity)
    generator = torch.Generator().manual_seed(5)
    for seed in (1, 2):
        stage.step(a_batch(seed), 10.0)
        stage.after_update()
    with torch.no_grad():
        for parameter in stage.network.trained_parameters().values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return stage


def diffused(nodes, k):
    """Steps 1 to 3 of SemiAG, entry by entry."""
    unit = F.normalize(nodes, dim=1)
    similarity = (unit @ unit.T).tolist()
    n = len(nodes)
    hoods = [{i, *sorted((j for j in range(n) if j != i), key=lambda j, i=i: -similarity[i][j])[:k]} for i in range(n)]
    counts = [[0 if i == j else sum(i in h and j in h for h in hoods) for j in range(n)] for i in range(n)]
    g = torch.tensor([[c / sum(row) for c in row] for row in counts], dtype=torch.float64)
    return g @ g @ g.T + torch.eye(n, dtype=torch.float64)


def threshold(q, quantile, diagonal):
    entries = [q[i, j].item() for i in range(len(q)) for j in range(len(q)) if diagonal or i != j]
    mean = sum(e for e in entries if e) / sum(1 for e in entries if e)
    above = torch.tensor([e for e in entries if e > mean], dtype=torch.float64)
    return torch.quantile(above, quantile).item()


def affinity_by_loops(queries, teacher, memory, labels, stage, token, generator):
    """The CAL term of the queries of one token; only the draw of negatives is the package's."""
    n, recipe = len(queries), stage.recipe
    swapped = torch.cat([teacher[B:], teacher[:B]])
    q = diffused(torch.cat([swapped, memory.embeddings]), stage.config.neighbours)
    limit = threshold(q, stage.config.affinity.quantile, recipe.threshold_diagonal)
    keys, key_labels = memory.embeddings, memory.labels.tolist()
    if recipe.batch_keys:
        keys, key_labels = torch.cat([swapped, keys]), [*labels[B:], *labels[:B], *key_labels]
    first = 0 if recipe.batch_keys else n
    # the query's own image: one view is its own positive already, the other is the query
    usable = torch.tensor(
        [[not recipe.batch_keys or j >= n or j % B != i % B for j in range(len(keys))] for i in range(n)]
    )
    found = (q[:n, first:] > limit) & usable
    drawn = sample_negatives(
        found,
        stage.config.affinity.negatives,
        subtract_positives=recipe.subtract_positives,
        candidates=usable,
        generator=generator,
    )
    own_view = teacher if token == "cls" and recipe.own_view_positive else swapped
    losses = []
    for i in range(n):
        similarities = [float(queries[i] @ own_view[i])] + (keys @ queries[i]).tolist()
        positives, anchors = [0], [0]
        for j in range(len(keys)):
            positive, negative = found[i, j].item(), drawn[i, j].item()
            if usable[i, j] and labels[i] >= 0 and key_labels[j] >= 0:
                if labels[i] == key_labels[j]:
                    positive, negative = True, False
                elif positive:  # found, but of another class
                    positive, negative = False, True
            positives += [1 + j] if positive else []
            anchors += [1 + j] if positive or negative else []
        losses.append(log_share(similarities, positives, anchors, 0.07))
    return sum(losses) / n


RECIPES = {
    "release": RECIPE,
    "threshold_diagonal": replace(RECIPE, threshold_diagonal=True),
    "own_view_positive": replace(RECIPE, own_view_positive=False),
    "batch_keys": replace(RECIPE, batch_keys=True),
    "paper": PAPER,
    "paper, threshold_diagonal": replace(PAPER, threshold_diagonal=True),
}


@pytest.mark.parametrize("negatives", [100, 4])  # all keys that are not positives, or a few of them
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_affinity_loss_equals_the_loops(recipe, negatives):
    stage, batch = trained_stage(recipe=recipe, negatives=negatives), a_batch(3)
    generator = torch.Generator().manual_seed(3)  # as the batch's
    labels = batch.labels.tolist()
    student, teacher = stage.network(batch.views), stage.teacher(batch.views)
    expected = 0.0
    for token, weight in (("cls", 1.0), ("prompt", 0.35)):
        wide = [widen(net[token].z).detach() for net in (student, teacher)]
        self_term, sup_term = semi_supervised(*wide, labels)
        cal = affinity_by_loops(
            student[token].h.detach(), teacher[token].h, stage.memories[token], labels, stage, token, generator
        )
        expected += weight * (0.35 * sup_term + 0.65 * (0.4 * self_term + 0.6 * cal))
    assert stage.step(batch, 10.0).loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_recipes_give_different_losses():
    losses = [trained_stage(recipe=recipe).step(a_batch(3), 10.0).loss.item() for recipe in RECIPES.values()]
    assert min(abs(a - b) for i, a in enumerate(losses) for b in losses[:i]) > 1e-5


def test_the_variant_selects_the_recipe():
    for variant, recipe in (("official", RELEASE), ("recommended", RELEASE), ("paper", PAPER)):
        config = load_config(values={"n_classes": CLASSES, "variant": variant})
        assert AffinityStage(tiny_network(), config).recipe == recipe


def test_official_negatives_fill_the_budget_that_positives_leave(monkeypatch):
    import promptcal.methods.promptcal.affinity as module

    anchors, original = [], module.contrastive_loss

    def watch(similarity, positives, mask, temperature):
        anchors.append((positives.sum(1), mask.sum(1)))
        return original(similarity, positives, mask, temperature)

    monkeypatch.setattr(module, "contrastive_loss", watch)
    for subtract, total in ((True, lambda p: 5), (False, lambda p: p + 5)):
        stage = affinity_stage(recipe=replace(RECIPE, subtract_positives=subtract), quantile=0.8, negatives=5)
        for seed in (1, 2, 3):
            batch = a_batch(seed)._replace(labels=torch.full((2 * B,), -1))
            stage.step(batch, 10.0)
            stage.after_update()
        positives, kept = anchors[-2]  # the class token's of the last step
        found = positives - 1  # its own positive counts apart
        assert found.max() <= 5
        assert kept.tolist() == [1 + total(p) for p in found.tolist()]


def test_empty_memory_means_no_affinity_term():
    stage = affinity_stage()
    batch = a_batch()
    logs = stage.step(batch, 10.0).logs
    assert "cls/affinity" not in logs
    stage.after_update()
    assert "cls/affinity" in stage.step(batch, 10.0).logs


def test_memory_receives_the_teachers_embeddings_after_the_step():
    network = tiny_network()
    stage = affinity_stage(network)
    batch = a_batch()
    expected = stage.teacher(batch.views)
    stage.step(batch, 0.0)
    assert len(stage.memories["cls"]) == 0
    stage.after_update()
    for token in ("cls", "prompt"):
        assert torch.equal(stage.memories[token].embeddings, expected[token].h)
        assert torch.equal(stage.memories[token].labels, batch.labels)


def test_graph_statistics_are_of_the_truth_of_queries_and_keys():
    truth = torch.full((20,), -1)
    truth[5:9] = torch.tensor([0, 1, 1, 0])
    stage = affinity_stage(truth=truth, n_known=1)
    # keys: images 8, 5, 7, 6 and one of unknown class, which counts for neither precision nor recall
    positives = torch.tensor([[True, False, True, False, True], [False] * 5])
    logs = stage._statistics(positives, torch.tensor([5, 6]), torch.tensor([8, 5, 7, 6, 1]))
    assert logs["positives"].tolist() == [3, 2]
    assert logs["precision"].tolist() == [1, 2]  # of image 8 (same class as 5) and 7 (another)
    assert logs["recall_new"].tolist() == [0, 2]  # image 6 finds neither 7 nor itself
    without_truth = affinity_stage()
    assert set(without_truth._statistics(positives, torch.tensor([5, 6]), torch.zeros(5))) == {
        "positives",
        "without_positives",
    }


def with_classifier(network):
    torch.manual_seed(1)
    parametric = ProjectionNetwork(network.vit, CLASSES, hidden=12, bottleneck=6, prototypes=20)
    parametric.heads = network.heads
    return parametric


def shares(cosines, temperature):
    powers = [math.exp(c / temperature) for c in cosines]
    return [power / sum(powers) for power in powers]


def test_a_classifier_beside_the_graph_adds_its_term_taught_by_the_teachers():
    batch, epochs_done, weight, alpha = a_batch(), 3.0, 0.5, 0.35
    plain = affinity_stage()
    network = with_classifier(tiny_network())
    stage = affinity_stage(network, classifier=weight)
    teachers = F.normalize(torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(2)), dim=1)
    stage.teacher.parameters["classifier.prototypes"].copy_(teachers)

    h = network(batch.views)["cls"].h.detach()
    own = (h @ F.normalize(network.classifier.prototypes.detach(), dim=1).T).tolist()
    taught = (h @ teachers.T).tolist()
    settings = stage.config.simgcd
    sharpened = settings.teacher_temperature_start + epochs_done / (settings.teacher_epochs - 1) * (
        settings.teacher_temperature - settings.teacher_temperature_start
    )
    student = [shares(row, settings.student_temperature) for row in own]
    targets = [shares(taught[(i + B) % (2 * B)], sharpened) for i in range(2 * B)]
    distillation = -sum(
        t * math.log(p)
        for target, found in zip(targets, student, strict=True)
        for t, p in zip(target, found, strict=True)
    ) / (2 * B)
    mean = [sum(row[c] for row in student) / (2 * B) for c in range(CLASSES)]
    entropy = -sum(m * math.log(m) for m in mean)
    labelled = [(i, int(label)) for i, label in enumerate(batch.labels) if label >= 0]
    supervised = -sum(math.log(student[i][label]) for i, label in labelled) / len(labelled)
    expected = alpha * supervised + (1 - alpha) * (distillation - settings.entropy_weight * entropy)

    without, with_it = (s.step(a_batch(), epochs_done).loss for s in (plain, stage))
    assert with_it.item() == pytest.approx(without.item() + weight * expected, rel=1e-5)


@pytest.mark.parametrize(
    ("ramp", "epochs_done", "beta"),
    [(2.0, 0.0, 0.0), (2.0, 1.0, 0.3), (2.0, 2.0, 0.6), (2.0, 9.0, 0.6), (0.0, 0.0, 0.6)],
)
def test_beta_ramp(ramp, epochs_done, beta):
    stage = affinity_stage(recipe=replace(RECIPE, beta_ramp_epochs=ramp))
    assert stage._beta(epochs_done) == pytest.approx(beta)


def test_an_affinity_step_can_be_replayed_once_the_memory_is_full_and_beta_has_risen():
    """What changes in Python between two steps must change the key."""
    stage = affinity_stage(recipe=replace(RECIPE, beta_ramp_epochs=1.0))
    keys, states = [], []
    for step in range(12):
        keys.append(stage.capture_key(step / 8))
        states.append((min(1.0, step / 8), len(stage.memories["cls"])))
        stage.step(a_batch(step), step / 8)
        stage.after_update()
    assert states[8] == states[11] == (1.0, MEMORY)
    for step in range(1, 12):
        assert (keys[step] == keys[step - 1]) == (states[step] == states[step - 1])


def test_with_a_classifier_each_temperature_needs_its_own_recording():
    stage = affinity_stage(with_classifier(tiny_network()), classifier=1.0)
    assert stage.capture_key(10.2) == stage.capture_key(10.9) != stage.capture_key(11.0)


def test_a_warmup_step_with_distillation_is_not_replayed():
    network = tiny_network()
    stage = WarmupStage("warmup", network, LossConfig(), a_distillation(network))
    assert [stage.capture_key(epoch) for epoch in (0.0, 4.9, 5.0)] == [None, None, ()]
    assert WarmupStage("warmup", network, LossConfig()).capture_key(0.0) == ()


def a_distillation(network):
    frozen = PromptedViT(copy.deepcopy(network.vit.backbone), prompts=0, train_blocks=0)
    pictures = [np.random.default_rng(i).integers(0, 256, (10, 9, 3), dtype=np.uint8) for i in range(5)]
    return Distillation(frozen, View(ImageStore.of(pictures), 8, (0.5,) * 3, (0.5,) * 3), batch_size=6)


def test_distillation_has_the_weights_of_the_release():
    weights = [distillation_weight(epoch) for epoch in range(7)]
    assert weights == pytest.approx([0.5, 0.402, 0.304, 0.206, 0.108, 0.0, 0.0])


def test_distillation_is_the_squared_distance_to_the_frozen_backbone():
    network = tiny_network()
    distillation = a_distillation(network)
    generator = torch.Generator().manual_seed(11)
    images = torch.randint(5, (6,), generator=generator)
    views = distillation.view.random(images, generator)
    tokens = [F.normalize(net(views).cls, dim=1).tolist() for net in (network.vit, distillation.frozen)]
    expected = sum((a - b) ** 2 for x, y in zip(*tokens, strict=True) for a, b in zip(x, y, strict=True)) / (6 * 16)
    assert expected > 0
    assert distillation.loss(network, 11).item() == pytest.approx(expected, rel=1e-5)
    batch = a_batch()
    plain = WarmupStage("warmup", network, LossConfig()).step(batch, 1.5).loss
    with_it = WarmupStage("warmup", network, LossConfig(), distillation).step(batch, 1.5)
    distance = distillation.loss(network, batch.generator.initial_seed())
    assert with_it.loss.item() == pytest.approx((plain + 0.402 * distance).item(), rel=1e-5)
    assert "distillation" not in WarmupStage("warmup", network, LossConfig(), distillation).step(batch, 5.0).logs


def test_the_distillation_of_a_run_is_to_the_pretrained_backbone_whatever_is_trained():
    config = load_config(
        values={"n_classes": CLASSES, "method": "promptcal-warmup"},
        overrides=["data.generic_images=photos", "data.batch_size=7", "model.head_hidden=12"],
    )
    network, asked = tiny_network(), []
    view = a_distillation(network).view
    context = StageContext(2, None, False, False, None, lambda folder: asked.append(folder) or view, None)
    pretrained = PromptedViT(copy.deepcopy(network.vit.backbone), prompts=0)
    distillation = METHODS["promptcal-warmup"](config).stage("warmup", network, context).distillation
    assert (asked, distillation.view, distillation.batch_size) == (["photos"], view, 7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.5)
        images = a_batch().views
        assert torch.equal(distillation.frozen(images).cls, pretrained.eval()(images).cls)
    assert not torch.allclose(network.vit(images).cls, pretrained(images).cls)
    assert not [p for p in distillation.frozen.parameters() if p.requires_grad]


def test_without_supervised_prompts_only_the_class_token_is_trained_on():
    network = tiny_network(prompts=3, supervised=0)
    assert network.tokens == ("cls",)
    found = WarmupStage("warmup", network, LossConfig()).step(a_batch(), 0.0)
    assert set(found.logs) == {"cls/self", "cls/supervised"}
