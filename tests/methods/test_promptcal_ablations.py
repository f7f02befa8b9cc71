"""Each ablation changes the term it names and nothing else: against loops, and against the terms of the default."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_promptcal_stages import (
    RECIPE,
    B,
    a_batch,
    affinity_stage,
    log_share,
    semi_supervised,
    threshold,
    tiny_network,
    trained_stage,
)
from torch.nn import functional as F

from promptcal.api import fit
from promptcal.config.schema import LossConfig
from promptcal.errors import ConfigError
from promptcal.methods import load_config
from promptcal.methods.promptcal.warmup import WarmupStage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "research" / "tables.md"
ALPHA, BETA, GAMMA = 0.35, 0.6, 0.35


def widen(projection):
    """The output of a head itself (n x prototypes)."""
    return torch.nn.functional.normalize(projection.bottleneck @ projection.prototypes.T, dim=1)


def on(token, tokens):
    return tokens == "both" or tokens == token


def mined_by_loops(nodes, n, settings):
    """The pseudo positives of the first n nodes, node by node."""
    unit = F.normalize(nodes.double(), dim=1)
    count = len(nodes)
    nearest = [
        sorted((j for j in range(count) if j != i), key=lambda j, i=i: -float(unit[i] @ unit[j]))[: settings.k]
        for i in range(count)
    ]
    if settings.mining == "knn":
        return [set(nearest[i]) for i in range(n)]
    if settings.mining == "ranking":
        top = [set(sorted(range(nodes.shape[1]), key=lambda d, v=v: -v[d])[: settings.ranking_top]) for v in nodes]
        return [{j for j in range(count) if j != i and top[i] == top[j]} for i in range(n)]
    graph = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            if settings.consensus:
                graph[i, j] = sum({i, j} <= {c, *nearest[c]} for c in range(count))
            else:
                graph[i, j] = j in nearest[i]
    graph /= graph.sum(dim=1, keepdim=True)
    diffused = graph
    for _ in range(settings.diffusion_steps):
        diffused = graph @ diffused @ graph.T + torch.eye(count, dtype=torch.float64)
    limit = threshold(diffused, settings.quantile, diagonal=False)
    return [{j for j in range(count) if diffused[i, j] > limit + 1e-9} for i in range(n)]


def cal_by_loops(queries, teacher, memory, memory_labels, labels, config, token):
    """Own positive: the teacher's same view for the class token, its other view for [P]; keys: the memory."""
    n = len(queries)
    swapped = torch.cat([teacher[B:], teacher[:B]])
    mined = mined_by_loops(torch.cat([swapped, memory]), n, config.affinity)
    own = teacher if token == "cls" else swapped
    losses = []
    for i in range(n):
        similarities = [float(queries[i] @ own[i]), *(memory @ queries[i]).tolist()]
        positives = {j for j in range(len(memory)) if n + j in mined[i]}
        if config.affinity.label_prior:
            for j, label in enumerate(memory_labels):
                if labels[i] >= 0 and label >= 0:
                    (positives.add if label == labels[i] else positives.discard)(j)
        anchors = range(1 + len(memory))  # the budget suffices for all
        losses.append(log_share(similarities, [0, *(1 + j for j in sorted(positives))], anchors, 0.07))
    return sum(losses) / n


ABLATIONS = [
    {},
    {"semicl": "none"},
    {"semicl": "cls"},
    {"semicl": "prompt"},
    {"cal": "none"},
    {"cal": "cls"},
    {"cal": "prompt"},
    {"semicl": "cls", "cal": "prompt"},
    {"label_prior": False},
    {"consensus": False},
    {"diffusion_steps": 0},
    {"diffusion_steps": 2},
    {"mining": "knn"},
    {"mining": "knn", "label_prior": False},
    {"mining": "ranking", "ranking_top": 2},
    {"mining": "ranking", "ranking_top": 1, "label_prior": False},
    {"k": 5},
    {"memory": 5},
]


@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
def test_stage_2_with_an_ablation_equals_the_loops(changes):
    stage, batch = trained_stage(**changes), a_batch(3)
    config = stage.config
    labels = batch.labels.tolist()
    student, teacher = stage.network(batch.views), stage.teacher(batch.views)
    expected = 0.0
    for token, weight in (("cls", 1.0), ("prompt", GAMMA)):
        if on(token, config.affinity.semicl):
            wide = [widen(net[token].z).detach() for net in (student, teacher)]
            self_term, sup_term = semi_supervised(*wide, labels)
            expected += weight * (ALPHA * sup_term + (1 - ALPHA) * (1 - BETA) * self_term)
        if on(token, config.affinity.cal):
            memory = stage.memories[token]
            cal = cal_by_loops(
                student[token].h.detach(),
                teacher[token].h,
                memory.embeddings.clone(),
                memory.labels.tolist(),
                labels,
                config,
                token,
            )
            expected += weight * (1 - ALPHA) * BETA * cal
    assert stage.step(batch, 10.0).loss.item() == pytest.approx(expected, rel=1e-4)


def test_no_two_ablations_give_the_same_loss():
    losses = [trained_stage(**changes).step(a_batch(3), 10.0).loss.item() for changes in ABLATIONS]
    assert min(abs(a - b) for i, a in enumerate(losses) for b in losses[:i]) > 1e-4


@pytest.mark.parametrize("changes", [c for c in ABLATIONS if c and ("semicl" in c or "cal" in c)], ids=str)
def test_a_term_switched_off_leaves_the_others_as_they_were(changes):
    whole, part = trained_stage().step(a_batch(3), 10.0), trained_stage(**changes).step(a_batch(3), 10.0)
    weights = {"supervised": ALPHA, "self": (1 - ALPHA) * (1 - BETA), "affinity": (1 - ALPHA) * BETA}
    gone = {
        (token, term)
        for token in ("cls", "prompt")
        for term in weights
        if not on(token, changes.get("cal" if term == "affinity" else "semicl", "both"))
    }
    assert gone
    removed = sum(
        weights[term] * (1 if token == "cls" else GAMMA) * whole.logs[f"{token}/{term}"] for token, term in gone
    )
    assert part.loss.item() == pytest.approx((whole.loss - removed).item(), rel=1e-5)
    for token in ("cls", "prompt"):
        for term in weights:
            name = f"{token}/{term}"
            assert (name not in part.logs) if (token, term) in gone else torch.equal(part.logs[name], whole.logs[name])


def test_without_propagation_the_diagonal_does_not_count_for_the_threshold():
    """The diagonal of the plain graph is 0, so `threshold_diagonal` changes nothing."""
    recipes = [replace(RECIPE, threshold_diagonal=diagonal) for diagonal in (True, False)]
    losses = [trained_stage(recipe=r, diffusion_steps=0).step(a_batch(3), 10.0).loss.item() for r in recipes]
    assert losses[0] == losses[1]


def test_without_semicl_on_prompts_their_head_is_not_trained():
    stage = trained_stage(semicl="cls")
    stage.step(a_batch(3), 10.0).loss.backward()
    assert all(p.grad is None for p in stage.network.heads["prompt"].parameters())
    assert any(p.grad.abs().sum() > 0 for p in stage.network.heads["cls"].parameters())
    assert stage.network.vit.prompts.grad.abs().sum() > 0


def test_without_cal_on_prompts_they_need_no_memory_and_a_resumed_stage_agrees():
    stage = trained_stage(cal="cls")
    assert set(stage.memories) == {"cls"}
    other = affinity_stage(stage.network, cal="cls")
    other.load_state_dict(stage.state_dict())
    assert other.step(a_batch(3), 10.0).loss.item() == stage.step(a_batch(3), 10.0).loss.item()


def test_nothing_but_cal_still_has_a_gradient_while_the_memory_is_empty():
    stage = affinity_stage(semicl="none")
    loss = stage.step(a_batch(), 10.0).loss
    loss.backward()
    assert loss.item() == 0.0


def test_warm_up_without_semicl_on_prompts_is_the_class_tokens_part():
    network, batch = tiny_network(), a_batch()
    wide = widen(network(batch.views)["cls"].z).detach()
    self_term, sup_term = semi_supervised(wide, wide, batch.labels.tolist())
    found = WarmupStage("warmup", network, LossConfig(), semicl="cls").step(batch, 0.0)
    assert found.loss.item() == pytest.approx((1 - ALPHA) * self_term + ALPHA * sup_term, rel=1e-4)
    assert set(found.logs) == {"cls/self", "cls/supervised"}


@pytest.mark.parametrize("supervised", [0, 1, 3])
def test_supervised_prompts_are_a_setting_of_the_model_alone(supervised):
    """With 0 the prompts are there and trained through the class token, and nothing is asked of [P]."""
    network = tiny_network(prompts=3, supervised=supervised)
    stage = trained_stage(network)
    step = stage.step(a_batch(3), 10.0)
    step.loss.backward()
    assert any(name.startswith("prompt/") for name in step.logs) == bool(supervised)
    assert network.vit.prompts.grad.abs().sum() > 0
    alone = sum(
        weight * step.logs[f"cls/{term}"].item()
        for term, weight in (
            ("supervised", ALPHA),
            ("self", (1 - ALPHA) * (1 - BETA)),
            ("affinity", (1 - ALPHA) * BETA),
        )
    )
    assert math.isclose(step.loss.item(), alone, rel_tol=1e-5) == (not supervised)


def test_a_fit_passes_the_settings_to_its_stages(small_set, quick_settings, tmp_path):
    images, _, labels = small_set
    changes = ["warmup.semicl=cls", "affinity.cal=cls", "affinity.mining=ranking", "tensorboard=false"]
    epochs = ["warmup.epochs=1", "affinity.epochs=1", "selection.by=last"]
    run = fit(
        images=images, labels=labels, n_classes=4, output=tmp_path / "run", progress=False,
        overrides=[*quick_settings, *epochs, *changes], report=False,
    )  # fmt: skip
    warmup, affinity = run.records()
    assert "cls/self" in warmup
    assert "prompt/self" not in warmup
    assert {"prompt/self", "cls/affinity", "cls/positives"} <= affinity.keys()
    assert {"prompt/affinity", "cls/threshold"}.isdisjoint(affinity)


# -- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["affinity.semicl=none", "affinity.cal=none"], "there is no loss; set epochs to 0"),
        (["affinity.consensus=false", "affinity.diffusion_steps=0"], "choose mining=knn"),
        (
            ["model.prompts=0", "affinity.semicl=prompt", "affinity.cal=none"],
            "only on [P], but no prompt is supervised",
        ),
        (["model.supervised_prompts=0", "affinity.semicl=none", "affinity.cal=prompt"], "no prompt is supervised"),
        (["affinity.minning=knn"], "did you mean 'affinity.mining'?"),
        (["affinity.mining=nearest"], "'affinity.mining' is wrong"),
        (["warmup.semicl=none"], "'warmup.semicl' is wrong"),
    ],
)
def test_settings_that_make_no_sense_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(values={"n_classes": 3}, overrides=overrides)


def settings_of_the_page():
    """The settings of every row of the page's tables, first column of backticks with an equals sign."""
    for line in PAGE.read_text("utf-8").partition("## Ablations")[2].partition("## Figures")[0].splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield re.findall(r"`([a-z_.0-9]+=[^`]*)`", line)


def test_every_row_of_the_page_is_a_configuration_of_its_own():
    rows = [row for row in settings_of_the_page() if row]
    assert len(rows) >= 13
    plain = load_config(preset="cub").model_dump()
    for row in rows:
        config = load_config(preset="cub", overrides=row)
        assert config.model_dump() != plain or row == ["affinity.k=5"]  # CUB's own
