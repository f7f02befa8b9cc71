"""The work of each process of tests/runtime/test_distributed.py: run by torchrun, or imported to do it in one process.

    torchrun --nproc-per-node 2 tests/several_processes.py FOLDER

Each process writes its results to FOLDER/RANK.pt; the tests compare them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from timm.models.vision_transformer import VisionTransformer

from promptcal.data import BalancedSampler, ImageSet, View
from promptcal.data.store import ImageStore, decode
from promptcal.errors import LabelError, PromptCALError
from promptcal.methods import METHODS, load_config
from promptcal.methods.base import StageContext
from promptcal.models import PromptedViT
from promptcal.runtime import distributed
from promptcal.training.checkpoints import Checkpoints
from promptcal.training.embedding import embed
from promptcal.training.loop import Loop, TrainingData
from promptcal.training.recorder import Recorder

STEPS, BATCH, IMAGES, CLASSES, KNOWN = 20, 8, 42, 5, 2
SETTINGS = (
    "model.head_hidden=12",
    "model.head_bottleneck=6",
    "model.head_prototypes=20",
    f"data.batch_size={BATCH}",
    "optim.lr=0.05",
)
PROMPTCAL_SETTINGS = ("affinity.k=3", "affinity.memory=24", "affinity.negatives=8")
# name: method, stages of 20 steps in all, further settings
TRIALS = {
    "promptcal": ("promptcal", {"warmup": 8, "affinity": 12}, ()),
    "promptcal as in the paper": ("promptcal", {"warmup": 8, "affinity": 12}, ("variant=paper",)),
    "promptcal with a classifier": ("promptcal", {"warmup": 8, "affinity": 12}, ("affinity.classifier=0.5",)),
    "promptcal-warmup": ("promptcal-warmup", {"warmup": 20}, ()),
    "distillation": ("promptcal-warmup", {"warmup": 20}, ("data.generic_images=somewhere",)),
    "gcd": ("gcd", {"gcd": 20}, ()),
    "simgcd": ("simgcd", {"simgcd": 20}, ()),
    "orca": ("orca", {"orca": 20}, ()),
    "uno": ("uno", {"uno": 20}, ()),
    "rankstats": ("rankstats", {"rankstats": 20}, ()),
}


def pixels():
    """Images of different shapes and colours, so that no two have nearly the same distance to a third one."""
    random = np.random.default_rng(0)
    shapes = random.integers(9, 14, size=(IMAGES, 2))
    noise = [random.integers(0, 64, size=(*shape, 3)) for shape in shapes]
    colours = random.integers(0, 192, size=(IMAGES, 1, 1, 3))
    return [(colour + grain).astype(np.uint8) for colour, grain in zip(colours, noise, strict=True)]


def tiny_vit(**more):
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0, **more)
    for block in vit.blocks:  # the initial weights are so small that all embeddings are nearly equal
        for weight in (block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc1.weight, block.mlp.fc2.weight):
            weight.data.mul_(10)
    return vit


def view_of_all():
    return View(ImageStore.of(pixels()), 8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def trained(name, group, folder):
    """20 steps on this process's part of the batches: the loss of each step, and the final network and stage."""
    method_name, stages, more = TRIALS[name]
    settings = (*SETTINGS, *(PROMPTCAL_SETTINGS if method_name.startswith("promptcal") else ()), *more)
    config = load_config(values={"n_classes": CLASSES, "method": method_name}, overrides=settings)
    # a group must start from the values of the first process
    torch.manual_seed(group.rank_info.rank)
    method = METHODS[method_name](config)
    network = method.build_network(PromptedViT(tiny_vit(), prompts=config.model.prompts), KNOWN)
    network.join_process_group(group)
    labels = torch.arange(IMAGES) % CLASSES
    labels[labels >= KNOWN] = -1
    unlabelled = (labels < 0).nonzero().flatten()
    context = StageContext(
        KNOWN,
        None,
        False,
        False,
        lambda: torch.eye(CLASSES, 16),
        lambda folder: view_of_all(),
        lambda: embed(network, view_of_all(), unlabelled, group=group),
    )
    data = TrainingData(view_of_all(), labels, BalancedSampler(labels >= 0, BATCH), group.part(BATCH))
    losses, states = [], []
    for stage_name, steps in stages.items():
        stage = method.stage(stage_name, network, context)
        loop = Loop(
            stage,
            data,
            epochs=1,
            optim=config.optim,
            seed=0,
            checkpoints=Checkpoints(folder),
            recorder=Recorder(folder, Console(quiet=True), tensorboard=False),
        )
        order = torch.cat([data.sampler.epoch(epoch) for epoch in range(-(-steps // data.sampler.steps_per_epoch))])
        stage.before_epoch(0)
        for done, batch in enumerate(data.batches(order[:steps], range(steps))):
            before = loop.position.sums.get("loss", torch.zeros(()))
            loop.step(batch, done / data.sampler.steps_per_epoch)
            losses.append(loop.position.sums["loss"] - before)
        states.append(stage.state_dict())
    return {
        "losses": torch.stack(losses),
        "weights": {name: p.detach().clone() for name, p in network.trained_parameters().items()},
        "states": states,
        "embeddings": embed(network, view_of_all(), torch.arange(IMAGES), batch_size=5, group=group),
    }


def batch_rows(world=1):
    """Embeddings of two views of 2 images per process: first views, then second views, as in one process."""
    return torch.arange(2.0 * 2 * world * 3).view(-1, 3).sin()


def loss_of(rows):
    """Depends on the order of the rows; the gradient of each row depends on all rows."""
    return ((rows @ rows.T).exp() * torch.arange(float(len(rows)))).sum().log()


def gathered(group):
    world, n = group.world, 2 * group.world
    part = group.part(n)
    own = batch_rows(world).view(2, n, 3)[:, part].reshape(-1, 3).requires_grad_()
    rows = group.all_gather(own, views=2)
    loss_of(rows).backward()
    return {"rows": rows.detach(), "gradient": own.grad, "half": group.all_gather(own.detach().bfloat16(), views=2)}


def error_of(work):
    try:
        work()
    except PromptCALError as error:
        return type(error).__name__, str(error)
    return None


def refuse_labels():
    raise LabelError("wrong labels")


def is_already_reported():
    """Of an error that passes through two entry points, as in the fit of `benchmark`."""
    try:
        distributed.distributed_entry_point(distributed.distributed_entry_point(refuse_labels))()
    except LabelError as error:
        return error.already_reported


def messages(group):
    rank = group.rank_info.rank
    apart = torch.ones(3) + (0.5 if rank else 0.0)
    nearly = torch.ones(3) + (1e-6 if rank else 0.0)
    group.sync_parameters([nearly])
    summed = [torch.full((2,), float(rank)), torch.ones(1, 3)]
    group.all_reduce_sum(summed)
    return {
        "summed": summed,
        "nearly": nearly,
        "apart": error_of(lambda: group.sync_parameters([apart])) if rank else group.sync_parameters([apart]),
        "result of first": group.on_first(lambda: rank + 10),
        "error of first": error_of(lambda: group.on_first(refuse_labels)),
        "gathered": group.all_gather_object(rank),
        "largest": group.all_reduce_max(3 if rank == 1 else 1),
        "joined": group.all_gather_bytes(torch.full((rank + 1,), rank, dtype=torch.uint8)),
        "same": error_of(lambda: group.check_same("images", "images")),
        "not same": error_of(lambda: group.check_same(rank, "images")),
        "already reported": is_already_reported(),
    }


def decoding(group, folder):
    """A store of images of which each process decodes a part; one image cannot be read."""
    images = ImageSet.of(sorted((folder / "images").iterdir()))
    store, kept, faults = decode(images, 10, skip_unreadable=True, group=group)
    return {"pixels": store.pixels, "heights": store.heights, "kept": kept, "faults": faults}


@distributed.distributed_entry_point
def main(folder: Path) -> None:
    group = distributed.group()
    found = {"gathered": gathered(group), "messages": messages(group), "decoding": decoding(group, folder)}
    found |= {name: trained(name, group, folder) for name in TRIALS}
    torch.save(found, folder / f"{group.rank_info.rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
