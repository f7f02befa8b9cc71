"""The loop: which epoch it keeps, how it optimises, what it records, when it stops."""

import gc
import json
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from promptcal.api import fit
from promptcal.data import BalancedSampler, ImageSet, View
from promptcal.data.store import decode
from promptcal.errors import Interrupted, TrainingError
from promptcal.methods import load_config
from promptcal.methods.promptcal.affinity import AffinityStage
from promptcal.methods.promptcal.warmup import WarmupStage
from promptcal.models.prompted_vit import run_block
from promptcal.runtime import phases
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.recorder import Recorder
from promptcal.training.validation import ValidationResult


@pytest.fixture
def scene(small_set, quick_settings, pretrained_network):
    images, _, labels = small_set
    config = load_config(overrides=(*quick_settings, "model.image_size=8"), values={"n_classes": 4})
    network = pretrained_network(config)
    store, _, _ = decode(ImageSet.of(images), 12)
    view = View(store, *network.vit.preprocessing)
    data = TrainingData(view, torch.from_numpy(labels), BalancedSampler(torch.from_numpy(labels >= 0), 16))
    return config, network, data


def fit_small(small_set, output, settings):
    images, _, labels = small_set
    return fit(
        images=images, labels=labels, n_classes=4, output=output, overrides=settings, progress=False, report=False
    )


def a_loop(scene, folder, epochs=3, data=None, **options):
    config, network, given = scene
    return Loop(
        WarmupStage("warmup", network, config.loss),
        data or given,
        epochs=epochs,
        optim=config.optim,
        seed=0,
        checkpoints=Checkpoints(folder),
        recorder=Recorder(folder, Console(quiet=True), tensorboard=False),
        **options,
    )


def test_a_finished_loop_is_freed_at_once(scene, tmp_path):
    """On a GPU it holds the memory of a whole step, which the next stage needs."""
    loop = a_loop(scene, tmp_path, epochs=1)
    loop.run()
    gone = weakref.ref(loop)
    gc.disable()
    try:
        del loop
        assert gone() is None
    finally:
        gc.enable()


def test_a_checkpoint_of_another_device_keeps_the_optimiser_of_this_one(scene, tmp_path):
    a_loop(scene, tmp_path, epochs=2).run()
    state = Checkpoints(tmp_path).load_last()
    for group in state["optimiser"]["param_groups"]:
        group |= {"fused": True, "lr": torch.tensor(0.5)}
    loop = a_loop(scene, tmp_path, epochs=2)
    loop.restore(state)
    assert [group["fused"] for group in loop.optimiser.param_groups] == [False]
    assert loop.set_learning_rate() == loop.optimiser.param_groups[0]["lr"] < 0.5


@pytest.mark.parametrize(
    ("scores", "every", "kept"),
    [
        ([0.1, 0.9, 0.3], 1, 2),
        ([0.5, 0.5, 0.3], 1, 2),  # the later of two equal ones
        ([0.4, 0.2], 2, 2),  # validated after epochs 2 and 3 only
        ([float("nan")] * 3, 1, 3),
    ],
)
def test_the_best_epoch_is_kept(scene, tmp_path, scores, every, kept):
    network = scene[1]
    seen = []

    def validate():
        seen.append({n: p.detach().clone() for n, p in network.trained_parameters().items()})
        return ValidationResult(scores[len(seen) - 1], 0.0, 0.0)

    loop = a_loop(scene, tmp_path, validate=validate, validate_every=every)
    loop.run()
    assert len(seen) == len(scores)
    assert loop.position.best_epoch == kept
    saved = load_file(Checkpoints(tmp_path).best("warmup"))
    expected = seen[kept - 1 if every == 1 else kept - 2]
    assert all(torch.equal(saved[name], value) for name, value in expected.items())


def test_without_validation_the_last_epoch_is_kept(scene, tmp_path):
    loop = a_loop(scene, tmp_path)
    loop.run()
    assert loop.position.best_epoch == 3
    saved = load_file(Checkpoints(tmp_path).best("warmup"))
    assert all(torch.equal(saved[n], p) for n, p in scene[1].trained_parameters().items())


def test_batches_hold_two_views_of_each_image(scene):
    _, _, data = scene
    (batch,) = data.batches(torch.tensor([[3, 40, 3]]), [1])
    assert batch.indices.tolist() == [3, 40, 3, 3, 40, 3]
    assert torch.equal(batch.labels, data.labels[batch.indices])
    assert not torch.equal(batch.views[0], batch.views[3])  # another crop of the same image
    expected = data.view.random(batch.indices, torch.Generator().manual_seed(1))
    assert torch.equal(batch.views, expected)


def test_a_parameter_group_has_its_own_learning_rate_and_weight_decay(scene, tmp_path):
    """Two steps of SGD with momentum, computed parameter by parameter."""
    config, network, _ = scene
    parameters = network.trained_parameters()
    prompts = [parameters.pop("vit.prompts")]
    groups = [
        {"params": list(parameters.values()), "weight_decay": 0.0},
        {"params": prompts, "lr_scale": 0.1, "weight_decay": 0.3},
    ]
    loop = a_loop(scene, tmp_path, epochs=2, parameter_groups=groups)
    settings = config.optim
    scale_and_decay = {id(p): (g.get("lr_scale", 1.0), g["weight_decay"]) for g in groups for p in g["params"]}
    expected = {id(p): (p.detach().clone(), 0.0) for p in loop.parameters.values()}
    original, epochs = loop.optimiser.step, []

    def step():
        lr = [settings.lr, (settings.lr + settings.min_lr) / 2][len(epochs) // 3]
        epochs.append(lr)
        for parameter in loop.parameters.values():
            scale, decay = scale_and_decay[id(parameter)]
            value, momentum = expected[id(parameter)]
            if parameter.grad is not None:
                momentum = settings.momentum * momentum + parameter.grad + decay * value
                expected[id(parameter)] = (value - lr * scale * momentum, momentum)
        original()

    loop.optimiser.step = step
    loop.run()
    assert len(epochs) == 6
    for parameter in loop.parameters.values():
        torch.testing.assert_close(parameter.detach(), expected[id(parameter)][0], rtol=1e-4, atol=1e-6)


def test_augment_changes_the_views_and_not_the_draws_of_the_stage(scene):
    _, _, data = scene

    def add_noise(views, generator):
        return views + torch.rand(views.shape, generator=generator)

    noisy = replace(data, augment=add_noise)
    order, seeds = torch.tensor([[3, 40], [7, 8]]), [1, 2]
    plain, changed, again = (list(d.batches(order, seeds)) for d in (data, noisy, noisy))
    for before, after, repeated in zip(plain, changed, again, strict=True):
        noise = after.views - before.views
        assert ((noise >= -1e-6) & (noise <= 1)).all()
        assert noise.std() > 0.2
        assert torch.equal(after.views, repeated.views)
        drawn = [torch.rand(4, generator=batch.generator) for batch in (before, after)]
        assert torch.equal(*drawn)
    assert not torch.equal(changed[0].views - plain[0].views, changed[1].views - plain[1].views)
    (second,) = noisy.batches(order[1:], seeds[1:])  # as after a resume
    assert torch.equal(second.views, changed[1].views)


@pytest.mark.parametrize(("variant", "head_is_new"), [("official", True), ("paper", False)])
def test_affinity_learning_starts_from_the_kept_warm_up(
    monkeypatch, tmp_path, small_set, quick_settings, variant, head_is_new
):
    starts = []
    original = AffinityStage.__init__

    def watch(self, network, *args, **options):
        starts.append({n: p.detach().clone() for n, p in network.trained_parameters().items()})
        original(self, network, *args, **options)

    monkeypatch.setattr(AffinityStage, "__init__", watch)
    settings = (*quick_settings, f"variant={variant}", "affinity.epochs=1", "optim.lr=0.05")
    fit_small(small_set, tmp_path / "run", settings)
    kept = load_file(tmp_path / "run" / "checkpoints" / "warmup-best.safetensors")
    for name, value in kept.items():
        is_new = not torch.equal(starts[0][name], value)
        constant_at_start = name.endswith("bias") and "heads.prompt" in name
        assert is_new == (head_is_new and name.startswith("heads.prompt")) or constant_at_start


def test_tensorboard_has_the_curves_of_both_stages(tmp_path, small_set, quick_settings):
    run = fit_small(small_set, tmp_path / "run", quick_settings)
    for stage in ("warmup", "affinity"):
        events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / stage)).Reload()
        curve = [e.value for e in events.Scalars("loss")]
        assert curve == pytest.approx([r["loss"] for r in run.records() if r["stage"] == stage])


def spoilt_in(monkeypatch, step, spoil):
    """Call ``spoil(loop)`` before the given step; returns the list of steps that began."""
    original, done = Loop.step, []

    def spoilt(self, *given):
        done.append(len(done) + 1)
        handles = spoil(self) if done[-1] == step else []
        original(self, *given)
        for handle in handles or []:
            handle.remove()

    monkeypatch.setattr(Loop, "step", spoilt)
    return done


def infinite_gradient(loop):
    return [p.register_hook(lambda g: torch.full_like(g, torch.inf)) for p in loop.parameters.values()]


def huge_rate(loop):
    loop.optimiser.param_groups[0]["lr"] = 1e38


def weight_nan(loop):
    with torch.no_grad():
        next(iter(loop.parameters.values())).view(-1)[0] = torch.nan


@pytest.mark.parametrize(
    ("spoil", "step", "what"),
    [
        (infinite_gradient, 4, "the gradient is no longer finite in warmup, epoch 2"),
        (weight_nan, 5, "the loss is no longer finite in warmup, epoch 2"),
        (huge_rate, 6, "the weights are no longer finite in warmup, epoch 2"),  # after the last gradient of the epoch
    ],
)
def test_values_that_are_not_finite_stop_the_run_and_are_never_saved(monkeypatch, scene, tmp_path, spoil, step, what):
    monkeypatch.setattr(Recorder, "_REFRESH_SECONDS", 0.0)  # check every step
    spoilt_in(monkeypatch, step, spoil)
    with pytest.raises(TrainingError, match=f"{what}.*checkpoint after warmup, epoch 1 is kept.*lower optim.lr"):
        a_loop(scene, tmp_path).run()
    kept = Checkpoints(tmp_path)
    state = kept.load_last()
    assert state["position"]["epoch"] == 1
    assert all(weight.isfinite().all() for weight in state["network"].values())
    assert not kept.best("warmup").exists()


def test_the_loop_stops_before_the_end_of_the_epoch(monkeypatch, scene, tmp_path):
    monkeypatch.setattr(Recorder, "_REFRESH_SECONDS", 0.0)
    done = spoilt_in(monkeypatch, 1, infinite_gradient)
    with pytest.raises(TrainingError, match="by step 1; there is no checkpoint yet"):
        a_loop(scene, tmp_path).run()
    assert len(done) == 1
    assert scene[2].sampler.steps_per_epoch == 3


def test_stopping_saves_nothing_that_is_not_finite(monkeypatch, scene, tmp_path):
    loop = a_loop(scene, tmp_path)

    def spoil_and_stop(loop):
        loop.stop.signal = 2
        return infinite_gradient(loop)

    spoilt_in(monkeypatch, 5, spoil_and_stop)
    with pytest.raises(TrainingError, match="the gradient is no longer finite"):
        loop.run()
    assert Checkpoints(tmp_path).load_last()["position"]["step"] == 0


def test_the_gradient_norm_is_captured(scene, tmp_path):
    loop = a_loop(scene, tmp_path)
    (batch,) = scene[2].batches(torch.arange(16).unsqueeze(0), [1])
    loop.step(batch, 0.0)
    squares = sum(float(p.grad.double().square().sum()) for p in loop.parameters.values() if p.grad is not None)
    assert float(loop.position.sums["gradient_norm"]) == pytest.approx(squares**0.5, rel=1e-5)
    a_loop(scene, tmp_path, epochs=1).run()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["gradient_norm"] > 0


def test_a_loss_of_nan_stops_a_fit(tmp_path, small_set, quick_settings):
    """The rate rises after the first epoch, whose checkpoint stays, and weight decay makes weights overflow."""
    rates = ("optim.lr=0.001", "optim.min_lr=10000", "optim.weight_decay=100")
    settings = (*quick_settings, "model.image_size=8", "model.train_blocks=1", "precision=fp32", *rates)
    with pytest.raises(TrainingError, match="lower optim.lr"):
        fit_small(small_set, tmp_path / "run", settings)
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    weights = [value for value in checkpoint["network"].values() if value.is_floating_point()]
    assert all(bool(value.isfinite().all()) for value in weights)


def test_embeddings_of_nan_stop_a_fit(tmp_path, monkeypatch, small_set, quick_settings):
    """Finite weights can be too large: here those of the last norm."""
    original = Loop._validate

    def with_huge_weights(self):
        with torch.no_grad():
            self.stage.network.vit.backbone.norm.bias.fill_(torch.finfo(torch.float32).max)
            self.stage.network.vit.backbone.norm.weight.fill_(torch.finfo(torch.float32).max)
        return original(self)

    monkeypatch.setattr(Loop, "_validate", with_huge_weights)
    settings = (*quick_settings, "model.image_size=8", "precision=fp32")
    with pytest.raises(TrainingError, match="embeddings of the validation images are no longer finite; lower optim.lr"):
        fit_small(small_set, tmp_path / "run", settings)


def test_the_global_random_state_is_restored(interrupted_at, tmp_path, small_set, quick_settings):
    """Also after a resumed run, which sets the states of its checkpoint."""
    images, _, labels = small_set
    settings = (*quick_settings, "model.image_size=8", "warmup.epochs=0", "affinity.epochs=2")
    given = {"images": images, "labels": labels, "n_classes": 4, "output": tmp_path / "run", "overrides": settings}

    def drawn():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    def seed():
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)

    seed()
    expected = drawn()
    interrupted_at(4)
    seed()
    with pytest.raises(Interrupted):
        fit(**given, progress=False, report=False)
    assert drawn() == expected
    seed()
    fit(**given, resume=True, progress=False, report=False)
    assert drawn() == expected


def test_the_first_step_of_a_compiled_network_is_compiling(scene, tmp_path, monkeypatch):
    """Each step takes 100 seconds on the clock of the phases; the first one of the stage compiles."""
    now = [0.0]
    monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: now[0]))
    step = Loop.step

    def slow_step(self, *given):
        now[0] += 100
        step(self, *given)

    monkeypatch.setattr(Loop, "step", slow_step)
    vit, steps = scene[1].vit, 2 * scene[2].sampler.steps_per_epoch
    for is_compiled in (True, False):
        if is_compiled:
            vit.compile(backend="eager")
        else:
            vit._run_block = run_block
        loop = a_loop(scene, tmp_path, epochs=2)
        loop.run()
        spent = loop.clock.phases()
        assert spent.get("compiling", 0) == 100 * is_compiled
        assert spent["warmup steps"] == 100 * (steps - is_compiled)


def test_nobody_can_know_the_name_of_a_file_of_tensorboard(tmp_path, monkeypatch):
    """A link that was planted at the name would be followed."""
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0)
    names = set()
    for i in range(2):
        recorder = Recorder(tmp_path / str(i), Console(quiet=True), tensorboard=True)
        recorder.open("warmup", 0)
        recorder.close()
        (file,) = (tmp_path / str(i)).rglob("events.out.tfevents.*")
        names.add(file.name.rpartition(".")[2])
    assert len(names) == 2
    assert all(len(name) == 16 for name in names)
