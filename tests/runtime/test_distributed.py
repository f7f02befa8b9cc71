"""Several processes give the results of one: batches, gradients, stores, embeddings; and what they reject."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import several_processes as scene
from promptcal.data import ImageSet
from promptcal.data.store import decode
from promptcal.errors import ConfigError
from promptcal.models import DiscoveryNetwork, PromptedViT
from promptcal.runtime import distributed
from promptcal.runtime.distributed import ALONE, Group, RankInfo
from promptcal.runtime.interrupts import StopRequest

# float32, summed in another order; a new head normalises small numbers, which magnifies rounding
TOLERANCES = {"losses": 1e-5, "states": 5e-5, "embeddings": 1e-5, "weights": 5e-4}


def launch(world, *command, **more):
    """torchrun on a free port."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return subprocess.run([*torchrun, *map(str, command)], capture_output=True, text=True, timeout=200, **more)


@pytest.fixture(
    scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=lambda world: f"{world} processes"
)
def found(request, tmp_path_factory):
    """The results of each process, in order."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "images").mkdir()
    for i, image in enumerate(scene.pixels()):
        Image.fromarray(image).save(folder / "images" / f"{i:02d}.png")
    (folder / "images" / "17.png").write_bytes(b"no image")
    ended = launch(request.param, scene.__file__, folder)
    assert ended.returncode == 0, ended.stderr
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


def test_all_gather_has_the_order_of_one_process_and_the_complete_gradient(found):
    processes = [process["gathered"] for process in found[1]]
    world = len(processes)
    rows = scene.batch_rows(world).requires_grad_()
    scene.loss_of(rows).backward()
    for rank, process in enumerate(processes):
        assert torch.equal(process["rows"], rows.detach())
        assert torch.equal(process["half"], rows.detach().bfloat16())
        own = rows.grad.view(2, 2 * world, 3)[:, 2 * rank : 2 * rank + 2].reshape(-1, 3)
        torch.testing.assert_close(process["gradient"], own, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", list(scene.TRIALS))
def test_twenty_steps_equal_those_of_one_process(found, name, tmp_path):
    alone = scene.trained(name, ALONE, tmp_path)
    assert len(alone["losses"]) == scene.STEPS
    assert (alone["losses"][0] - alone["losses"][-1]).abs() > 1e-3  # the loss changes
    first = found[1][0][name]
    for what, tolerance in TOLERANCES.items():
        torch.testing.assert_close(first[what], alone[what], rtol=1e-5, atol=tolerance)
    for other in found[1][1:]:
        torch.testing.assert_close(other[name], first, rtol=0, atol=0)  # the processes are bit-equal


def test_collective_operations(found):
    world = len(found[1])
    for rank, process in enumerate(found[1]):
        messages = process["messages"]
        assert torch.equal(messages["summed"][0], torch.full((2,), float(sum(range(world)))))
        assert torch.equal(messages["summed"][1], torch.full((1, 3), float(world)))
        assert torch.equal(messages["nearly"], torch.ones(3))
        assert (messages["apart"] is None) == (rank == 0)
        if rank:
            assert messages["apart"][0] == "TrainingError"
            assert "differ from those of process 0" in messages["apart"][1]
        assert messages["result of first"] == 10
        assert messages["error of first"] == ("LabelError", "wrong labels")
        assert messages["gathered"] == list(range(world))
        assert messages["largest"] == 3
        assert messages["joined"].tolist() == [r for r in range(world) for _ in range(r + 1)]
        assert messages["same"] is None
        assert messages["not same"][0] == "DataError"
    assert sorted(process["messages"]["already reported"] for process in found[1]) == [False] + [True] * (world - 1)


def test_each_process_decodes_a_part_and_gets_all_images(found):
    folder, processes = found
    images = ImageSet.of(sorted((folder / "images").iterdir()))
    store, kept, faults = decode(images, 10, skip_unreadable=True)
    assert len(kept) == scene.IMAGES - 1
    for process in processes:
        shared = process["decoding"]
        assert torch.equal(shared["pixels"], store.pixels)
        assert torch.equal(shared["heights"], store.heights)
        assert shared["kept"] == kept
        assert shared["faults"] == faults


@pytest.mark.parametrize(("n", "world"), [(10, 1), (10, 3), (9, 3), (2, 4)])
def test_the_parts_of_all_ranks_are_all_items(n, world):
    groups = [Group(RankInfo(rank, world)) for rank in range(world)]
    assert [i for group in groups for i in range(n)[group.part(n)]] == list(range(n))
    together = torch.cat([group.equal_part(n) for group in groups])
    assert together[:n].tolist() == list(range(n))
    assert len({len(group.equal_part(n)) for group in groups}) == 1


@pytest.mark.parametrize("world", [2, 4])
def test_parts_of_a_batch_have_the_crops_of_the_whole_batch(world):
    view, order, seeds = scene.view_of_all(), torch.arange(16).view(2, 8), [5, 6]
    parts = [list(view.batches(order, seeds, Group(RankInfo(rank, world)).part(8))) for rank in range(world)]
    for k, whole in enumerate(view.batches(order, seeds)):
        first, second = (torch.cat(views) for views in zip(*(part[k].chunk(2) for part in parts), strict=True))
        assert torch.equal(torch.cat([first, second]), whole)


def test_a_batch_size_that_cannot_be_divided_is_rejected():
    with pytest.raises(ConfigError, match=r"batch_size \(128\) cannot be divided among 3 .*data.batch_size=126"):
        Group(RankInfo(0, 3)).check(128, torch.device("cpu"))
    Group(RankInfo(0, 4)).check(128, torch.device("cpu"))
    ALONE.check(127, torch.device("mps"))


@pytest.mark.parametrize(("device", "reason"), [("mps", "cpu or cuda"), ("cuda:1", "its own GPU"), ("cuda", "GPUs")])
def test_a_device_that_processes_cannot_share_is_rejected(monkeypatch, device, reason):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=reason):
        Group(RankInfo(0, 2, 0, 2)).check(128, torch.device(device))


@pytest.mark.parametrize("kind", ["proj_drop_rate", "drop_path_rate", "patch_drop_rate"])
def test_a_backbone_with_dropout_is_rejected_in_a_group(kind):
    network = DiscoveryNetwork(PromptedViT(scene.tiny_vit(**{kind: 0.1})))
    with pytest.raises(ConfigError, match="with dropout"):
        network.join_process_group(Group(RankInfo(0, 2)))
    DiscoveryNetwork(PromptedViT(scene.tiny_vit())).join_process_group(Group(RankInfo(0, 2)))


@pytest.mark.parametrize(("signal", "exit_code"), [(0, None), (15, 143), (2, 130), ("deadline", 75)])
def test_a_stop_request_reaches_all_processes(signal, exit_code):
    other = StopRequest(deadline=0.0 if signal == "deadline" else None)
    other.signal = None if signal in (0, "deadline") else signal
    other.has_progressed = True
    sent = []
    other.requested_by_any(FakeGroup(sent.append))
    stop = StopRequest()
    received = stop.requested_by_any(FakeGroup(lambda own: max(own, *sent)))
    assert received == bool(stop) == (exit_code is not None)
    assert not received or stop.exit_code == exit_code


class FakeGroup(Group):
    """A group in which ``answer`` replaces the largest number."""

    def __init__(self, answer):
        super().__init__()
        self.all_reduce_max = lambda number: answer(number) or 0


def test_the_rank_is_read_from_the_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert RankInfo.here() == RankInfo(0, 1, 0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")  # some job systems set it for every program
    assert RankInfo.here() == RankInfo(0, 1, 0, 1)
    for name, value in {"RANK": "5", "MASTER_ADDR": "there", "MASTER_PORT": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert RankInfo.here() == RankInfo(5, 8, 1, 4)


def test_a_launch_is_recognised_after_a_restart(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert distributed.launch() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    assert distributed.launch() == "job-7"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun's value if no id is given
    assert distributed.launch() == distributed.launch() != "none"


def test_commands_for_one_process_are_rejected_under_torchrun(monkeypatch, promptcal, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "there", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, _, errors = promptcal("predict", tmp_path, tmp_path)
    assert code == 2
    assert "predict runs in one process; run it without torchrun" in errors
    assert not Path(tmp_path / "predictions.csv").exists()
