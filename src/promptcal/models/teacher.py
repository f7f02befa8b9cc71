"""The teacher: an exponential moving average of the student's trained parameters.

The frozen trunk is the student's own: the teacher keeps copies only of what is trained (prompts of every block,
last block, heads) and calls the student's network with them put in place.
"""

import torch
from torch import Tensor
from torch.func import functional_call

from promptcal.models.network import ProjectionNetwork, TokenOutput


class Teacher:
    def __init__(self, student: ProjectionNetwork, momentum: float = 0.999) -> None:
        self.student = student
        self.momentum = momentum
        self._followed = student.trained_parameters()  # looked up once: a walk over all modules takes a millisecond
        self.parameters = {name: p.detach().clone() for name, p in self._followed.items()}

    @torch.no_grad()
    def __call__(self, images: Tensor) -> dict[str, TokenOutput]:
        return functional_call(self.student, self.parameters, (images,))

    @torch.no_grad()
    def part(self, name: str, features: Tensor) -> Tensor:
        """What one of the student's modules would give with the teacher's weights."""
        own = {n.removeprefix(f"{name}."): p for n, p in self.parameters.items() if n.startswith(f"{name}.")}
        return functional_call(self.student.get_submodule(name), own, (features,))

    @torch.no_grad()
    def update(self) -> None:
        """One step of the moving average: ``teacher <- m teacher + (1 - m) student``."""
        torch._foreach_lerp_(list(self.parameters.values()), list(self._followed.values()), 1.0 - self.momentum)

    def state_dict(self) -> dict[str, Tensor]:
        return self.parameters

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in self.parameters.items():
            value.copy_(state[name])
