"""The cosine of the narrow projections equals that of the wide outputs."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from promptcal.models.head import DINOHead, Projection, projected_cosine

DIM, HIDDEN, BOTTLENECK, PROTOTYPES, BATCH = 12, 16, 8, 97, 6


def widen(projection):
    """The output of a head itself (n x prototypes)."""
    return torch.nn.functional.normalize(projection.bottleneck @ projection.prototypes.T, dim=1)


def head(seed):
    torch.manual_seed(seed)
    made = DINOHead(DIM, HIDDEN, BOTTLENECK, PROTOTYPES)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def embeddings(seed, n=BATCH):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def wide_cosine(queries, keys):
    return widen(queries) @ widen(keys).T


def test_widen_is_the_normalised_weight_normalised_linear_map():
    model, x = head(0), embeddings(1)
    hidden = F.gelu(model.mlp[2](F.gelu(model.mlp[0](x))))
    bottleneck = model.mlp[4](hidden)
    bottleneck = bottleneck / bottleneck.norm(dim=1, keepdim=True)
    rows = model.last_layer.weight / model.last_layer.weight.norm(dim=1, keepdim=True)
    wide = bottleneck @ rows.T
    torch.testing.assert_close(widen(model(x)), wide / wide.norm(dim=1, keepdim=True))


def test_default_sizes_are_the_methods():
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in DINOHead(768).named_parameters() if name.endswith("weight")}
    mlp = {"mlp.0.weight": (2048, 768), "mlp.2.weight": (2048, 2048), "mlp.4.weight": (256, 2048)}
    assert shapes == mlp | {"last_layer.weight": (65536, 256)}


@pytest.mark.parametrize("same_head", [True, False])
@pytest.mark.parametrize("prototypes", [97, 5])
def test_narrow_cosine_and_gradients_are_the_wide_ones_in_double_precision(same_head, prototypes):
    torch.manual_seed(0)
    shapes = [(4, BOTTLENECK), (7, BOTTLENECK), (prototypes, BOTTLENECK)] + [(prototypes, BOTTLENECK)] * (not same_head)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    unit = [F.normalize(leaf, dim=1) for leaf in leaves]
    queries, keys = Projection(unit[0], unit[2]), Projection(unit[1], unit[-1])
    weights = torch.randn(4, 7, dtype=torch.float64)
    narrow, wide = projected_cosine(queries, keys), wide_cosine(queries, keys)
    torch.testing.assert_close(narrow, wide, rtol=1e-11, atol=1e-12)
    gradients = [torch.autograd.grad((c * weights).sum(), leaves, retain_graph=True) for c in (narrow, wide)]
    for ours, expected in zip(*gradients, strict=True):
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def test_gradients_reach_every_weight_of_the_head_as_through_the_wide_output():
    model, teacher, x, y = head(0), head(1), embeddings(2), embeddings(3)
    leaves = [x, y, *model.parameters(), *teacher.parameters()]
    weights = torch.randn(BATCH, BATCH)
    gradients = [
        torch.autograd.grad((cosine(model(x), teacher(y)) * weights).sum(), leaves)
        for cosine in (projected_cosine, wide_cosine)
    ]
    for ours, expected in zip(*gradients, strict=True):
        assert expected.abs().max() > 1e-5
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)


def test_a_zero_embedding_gives_no_nan():
    model = DINOHead(DIM, HIDDEN, BOTTLENECK, PROTOTYPES)  # biases start at 0, so an input of 0 gives 0
    x = torch.cat([torch.zeros(1, DIM), torch.randn(2, DIM)]).requires_grad_()
    z = model(x)
    cosine = projected_cosine(z, z)
    assert torch.equal(cosine[0], torch.zeros(3))
    for gradient in torch.autograd.grad(cosine.sum(), [x, *model.parameters()]):
        assert gradient.isfinite().all()


class Shapes(TorchDispatchMode):
    """Records the shape of every tensor that an operation creates, also in the backward pass."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for value in output if isinstance(output, tuple | list) else [output]:
            if isinstance(value, torch.Tensor):
                self.seen.add(tuple(value.shape))
        return output


def wide_shapes(cosine):
    """Shapes with both a batch and a prototype dimension, in the forward and the backward pass."""
    model, teacher, x, y = head(0), head(1), embeddings(2), embeddings(3)
    with Shapes() as shapes:
        (cosine(model(x), teacher(y)) + cosine(model(x), model(y))).sum().backward()
    assert model.last_layer.weight.grad.shape in shapes.seen
    return {shape for shape in shapes.seen if BATCH in shape and PROTOTYPES in shape}


def test_no_tensor_has_both_images_and_prototypes():
    assert wide_shapes(projected_cosine) == set()
    assert wide_shapes(wide_cosine) >= {(BATCH, PROTOTYPES)}  # the recorder works
