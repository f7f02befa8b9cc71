"""What prompts cost: FLOPs against the closed form of a ViT, and the table of them."""

import json

import pytest
import torch

from promptcal import api
from promptcal.experiments.efficiency import count_flops, measure
from promptcal.models import PromptedViT


def flops_by_hand(*, size, patch, dim, depth, prompts, read=None):
    """Two for each multiplication and addition in the matrix products of one image.

    Of the last block only the first ``read`` tokens, which still look at all.
    """
    patches = (size // patch) ** 2
    tokens = patches + 1 + prompts
    total = 2 * patches * 3 * patch * patch * dim
    for block in range(depth):
        out = tokens if read is None or block < depth - 1 else read
        keys_and_values = 2 * tokens * dim * 2 * dim
        attention = 2 * out * dim * dim + 2 * 2 * out * tokens * dim + 2 * out * dim * dim
        total += keys_and_values + attention + 2 * 2 * out * dim * 4 * dim
    return total


@pytest.mark.parametrize("prompts", [0, 5])
@pytest.mark.parametrize("n_images", [1, 2])
def test_flops_are_those_of_the_matrix_products(prompts, n_images):
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", prompts, 0, pretrained=False)
    shape = {"size": 32, "patch": 4, "dim": 192, "depth": 6, "prompts": prompts}
    images = torch.zeros(n_images, 3, 32, 32)
    with torch.inference_mode():
        assert count_flops(vit.forward_tokens, images) == n_images * flops_by_hand(**shape)
        assert count_flops(vit, images) == n_images * flops_by_hand(**shape, read=1)


def test_the_published_flops_are_these():
    by_hand = {p: flops_by_hand(size=224, patch=16, dim=768, depth=12, prompts=p) / 1e9 for p in (0, 5)}
    assert by_hand[0] == pytest.approx(35.1, abs=0.05)
    assert by_hand[5] == pytest.approx(36.1, abs=0.1)


def test_figures_of_one_image_agree_with_each_other():
    vit = PromptedViT("vit_tiny_patch4_32.promptcal", 5, 0, image_size=8, pretrained=False)
    figures = measure(vit, torch.device("cpu"))
    assert figures["images_per_second"] == pytest.approx(1 / figures["seconds_per_image"])
    assert figures["gflops"] == flops_by_hand(size=8, patch=4, dim=192, depth=6, prompts=5) / 1e9
    assert figures["gflops_here"] == flops_by_hand(size=8, patch=4, dim=192, depth=6, prompts=5, read=1) / 1e9
    assert figures["million_parameters"] == sum(p.numel() for p in vit.parameters()) / 1e6


def test_the_table_measures_each_row_once(tmp_path):
    def make():
        return api.table(
            name="efficiency",
            output=tmp_path,
            scale="mini",
            seeds=[0],
            overrides=["model.image_size=8"],
            device="cpu",
            progress=False,
        )

    made = make()
    without, with_prompts = made.summary.cells
    assert (without.status, with_prompts.status) == ("finished", "finished")
    for cell, prompts in ((without, 0), (with_prompts, 5)):
        expected = flops_by_hand(size=8, patch=4, dim=192, depth=6, prompts=prompts) / 1e9
        assert cell.selected.means["gflops"].mean == pytest.approx(expected)
        assert cell.difference == {}  # another backbone than the published one
    added = 6 * 5 * 192 / 1e6
    more = with_prompts.selected.means["million_parameters"].mean - without.selected.means["million_parameters"].mean
    assert more == pytest.approx(added)
    assert "Measured on cpu (" in made.markdown.read_text()
    first = {file: file.read_bytes() for file in tmp_path.glob("*/results.json")}
    assert len(first) == 2
    csv = made.csv.read_bytes()
    assert make().csv.read_bytes() == csv
    assert {file: file.read_bytes() for file in tmp_path.glob("*/results.json")} == first
    damaged = next(iter(first))
    damaged.write_text(json.dumps({"efficiency": {}}))
    assert list(make().summary.problems) == [damaged.parent.name]
