"""The teacher: a moving average of the trained parameters, on the student's frozen backbone."""

import copy

import pytest
import torch

from promptcal.models import ProjectionNetwork, PromptedViT, Teacher, projected_cosine


@pytest.fixture
def student(tiny_vit):
    torch.manual_seed(0)
    return ProjectionNetwork(PromptedViT(tiny_vit()), hidden=8, bottleneck=4, prototypes=16)


def move(student, seed):
    """Change the trained parameters, like an optimiser step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in student.trained_parameters().values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def flat(outputs):
    return torch.cat([part.flatten() for o in outputs.values() for part in (o.h, o.z.bottleneck, o.z.prototypes)])


def test_starts_with_copies_of_the_trained_parameters_only(student, images):
    views = images(student.vit.backbone)
    teacher = Teacher(student)
    assert teacher.momentum == 0.999
    torch.testing.assert_close(flat(teacher(views)), flat(student(views)))
    for name, parameter in student.trained_parameters().items():
        assert torch.equal(teacher.parameters[name], parameter)
        assert teacher.parameters[name].data_ptr() != parameter.data_ptr()
    kept = set(teacher.parameters)
    assert kept == {name for name, p in student.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in kept} == {"vit", "heads"}
    assert {name.split(".")[3] for name in kept if ".blocks." in name} == {"2"}
    assert not any("norm." in name and ".blocks." not in name for name in kept)
    assert "vit.prompts" in kept


def test_shares_the_students_frozen_backbone(student, images):
    views = images(student.vit.backbone)
    teacher = Teacher(student)
    before = flat(teacher(views))
    with torch.no_grad():
        student.vit.backbone.blocks[0].mlp.fc1.weight.mul_(-1)
    assert not torch.allclose(flat(teacher(views)), before)
    torch.testing.assert_close(flat(teacher(views)), flat(student(views)))


def test_average_has_its_closed_form(student):
    momentum, steps = 0.9, 5
    teacher = Teacher(student, momentum)
    history = [{name: p.detach().double() for name, p in student.trained_parameters().items()}]
    for step in range(steps):
        move(student, step)
        teacher.update()
        history.append({name: p.detach().double() for name, p in student.trained_parameters().items()})
    for name, value in teacher.parameters.items():
        expected = momentum**steps * history[0][name] + sum(
            (1 - momentum) * momentum ** (steps - i) * history[i][name] for i in range(1, steps + 1)
        )
        assert not torch.allclose(value.double(), history[-1][name], atol=1e-2)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_outputs_change_with_an_update_only_and_equal_a_network_with_the_averaged_weights(student, images):
    views = images(student.vit.backbone)
    teacher = Teacher(student, 0.5)
    before = flat(teacher(views))
    move(student, 0)
    assert torch.equal(flat(teacher(views)), before)
    assert not torch.allclose(flat(student(views)), before, atol=1e-2)
    teacher.update()
    assert not torch.equal(flat(teacher(views)), before)
    averaged = copy.deepcopy(student)
    averaged.load_state_dict(teacher.parameters, strict=False)
    torch.testing.assert_close(flat(teacher(views)), flat(averaged(views)))


def test_a_call_changes_nothing_in_the_student_and_has_no_gradient(student, images):
    views = images(student.vit.backbone)
    teacher = Teacher(student)
    move(student, 0)
    before = copy.deepcopy(student.state_dict())
    output = teacher(views)
    assert not flat(output).requires_grad
    assert student.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert all(p.grad is None for p in student.parameters())
    projected_cosine(student(views)["cls"].z, output["cls"].z).sum().backward()
    assert student.vit.prompts.grad.abs().max() > 0


def test_state_survives_a_round_trip(student, images):
    views = images(student.vit.backbone)
    teacher = Teacher(student, 0.5)
    move(student, 0)
    teacher.update()
    state = copy.deepcopy(teacher.state_dict())
    other = Teacher(student, 0.5)
    assert not torch.equal(flat(other(views)), flat(teacher(views)))
    other.load_state_dict(state)
    assert torch.equal(flat(other(views)), flat(teacher(views)))


def test_network_gives_unit_embeddings_and_a_head_for_each_token(student, images):
    views = images(student.vit.backbone)
    output, tokens = student(views), student.vit(views)
    assert student.tokens == tuple(output) == ("cls", "prompt")
    for name, token in (("cls", tokens.cls), ("prompt", tokens.prompt)):
        torch.testing.assert_close(output[name].h, token / token.norm(dim=1, keepdim=True))
        torch.testing.assert_close(output[name].z.bottleneck, student.heads[name](token).bottleneck)
    assert not torch.equal(output["cls"].z.prototypes, output["prompt"].z.prototypes)


@pytest.mark.parametrize("prompts", [{"prompts": 0}, {"supervised": 0}])
def test_network_without_supervised_prompts_has_the_class_token_only(prompts, tiny_vit, images):
    vit = tiny_vit()
    prompted = PromptedViT(vit, **prompts)
    assert prompted(images(vit)).prompt is None
    network = ProjectionNetwork(prompted, hidden=8, bottleneck=4, prototypes=16)
    assert network.tokens == tuple(network(images(vit))) == ("cls",)


def test_resetting_the_prompt_head_changes_nothing_else(student):
    before = copy.deepcopy(student.state_dict())
    student.reset_prompt_head()
    changed = {name for name, value in student.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("heads.prompt.") for name in changed)
    assert all(p.requires_grad for p in student.heads["prompt"].parameters())
