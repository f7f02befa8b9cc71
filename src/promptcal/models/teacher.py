"""The teacher: an exponential moving average of the student's trained parameters.

The teacher holds copies of the trained parameters only (prompts, last block, heads) and calls the student's network
with them; the frozen backbone is shared.
"""

import torch
from torch import Tensor
from torch.func import functional_call

from promptcal.models.network import ProjectionNetwork, TokenOutput


class Teacher:
    """Call it with images for the outputs of `ProjectionNetwork` with the averaged parameters."""

    def __init__(self, student: ProjectionNetwork, momentum: float = 0.999) -> None:
        self.student = student
        self.momentum = momentum
        self._student_parameters = student.trained_parameters()  # stored because collecting them takes a millisecond
        self.parameters = {name: p.detach().clone() for name, p in self._student_parameters.items()}

    @torch.no_grad()
    def __call__(self, images: Tensor) -> dict[str, TokenOutput]:
        return functional_call(self.student, self.parameters, (images,))

    @torch.no_grad()
    def part(self, name: str, features: Tensor) -> Tensor:
        """The output of one of the student's modules with the teacher's weights."""
        own = {n.removeprefix(f"{name}."): p for n, p in self.parameters.items() if n.startswith(f"{name}.")}
        return functional_call(self.student.get_submodule(name), own, (features,))

    @torch.no_grad()
    def update(self) -> None:
        """One step of the moving average: ``teacher <- m teacher + (1 - m) student``."""
        own, student = tuple(self.parameters.values()), tuple(self._student_parameters.values())
        torch._foreach_lerp_(own, student, 1.0 - self.momentum)

    def state_dict(self) -> dict[str, Tensor]:
        return self.parameters

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in self.parameters.items():
            value.copy_(state[name])
