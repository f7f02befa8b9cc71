"""The student: a prompted ViT with one head for the class token and one for the supervised prompts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.errors import ConfigError
from promptcal.models.head import DINOHead, Projection
from promptcal.models.prompted_vit import PromptedViT, TokenEmbeddings
from promptcal.runtime.distributed import ALONE, Group


class TokenOutput(NamedTuple):
    """What the losses need of one token: h, its L2-normalised embedding, and z, its projection."""

    h: Tensor
    z: Projection


class DiscoveryNetwork(nn.Module):
    """What every method trains: a ViT, and whatever the method puts on top of it."""

    def __init__(self, vit: PromptedViT) -> None:
        super().__init__()
        self.vit = vit
        self.group: Group = ALONE

    def join_process_group(self, group: Group) -> None:
        """Train with other processes: from the first one's values, each on its part of the batches."""
        if group.world > 1 and any(map(_drops_out, self.modules())):
            raise ConfigError("a backbone that drops out would do so otherwise in several processes; train it in one")
        self.group = group
        group.broadcast_parameters([*self.parameters(), *self.buffers()])

    def embeddings(self, images: Tensor) -> TokenEmbeddings:
        """Of two views of the whole batch, though each process of a group is given only its part of the images."""
        cls, prompt = self.vit(images)
        gathered = self.group.all_gather
        return TokenEmbeddings(gathered(cls, views=2), None if prompt is None else gathered(prompt, views=2))

    def all_reduce_gradients(self) -> None:
        """Those of the ViT, which each process has only of its own part; what is on top of it saw the whole batch."""
        if self.group.world > 1:
            self.group.all_reduce_sum([p.grad for p in self.vit.parameters() if p.grad is not None])

    def load_previous(self, state: dict[str, Tensor], outputs: Callable[[], Sequence[int]]) -> None:
        """Load the weights of a finished run to continue from.

        ``outputs`` gives, for each category of this network, the previous classifier's output for it (-1 = none).
        """
        self.load_state_dict(state)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def _drops_out(module: nn.Module) -> bool:
    """Whether it is one of PyTorch's or timm's kinds of dropout and switched on."""
    return "Drop" in type(module).__name__ and any(getattr(module, name, 0) for name in ("p", "drop_prob", "prob"))


class ProjectionNetwork(DiscoveryNetwork):
    """``forward`` gives the outputs by token: always "cls", and "prompt" if prompts are supervised."""

    def __init__(self, vit: PromptedViT, *, hidden: int = 2048, bottleneck: int = 256, prototypes: int = 65536) -> None:
        super().__init__(vit)
        self._head_sizes = {"hidden": hidden, "bottleneck": bottleneck, "prototypes": prototypes}
        self.heads = nn.ModuleDict({"cls": self._new_head()})
        if vit.n_supervised:
            self.heads["prompt"] = self._new_head()

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.heads)

    def reset_prompt_head(self) -> None:
        """Start the [P] head anew, as the official second stage does."""
        if "prompt" in self.heads:
            device = next(self.heads["prompt"].parameters()).device
            self.heads["prompt"] = self._new_head().to(device)

    def load_previous(self, state: dict[str, Tensor], outputs: Callable[[], Sequence[int]]) -> None:
        """Without a classifier beside the heads, which starts again at the clusters."""
        kept = {name: values for name, values in state.items() if not name.startswith("classifier.")}
        own = {name: values for name, values in self.state_dict().items() if name.startswith("classifier.")}
        self.load_state_dict({**own, **kept})

    def forward(self, images: Tensor) -> dict[str, TokenOutput]:
        embeddings = self.embeddings(images)
        outputs = {}
        for token, head in self.heads.items():
            embedding = embeddings.cls if token == "cls" else embeddings.prompt
            assert embedding is not None
            with self.vit.arithmetic(images.device):
                projection = head(embedding)
            outputs[token] = TokenOutput(F.normalize(embedding.float(), dim=1), projection)
        return outputs

    def _new_head(self) -> DINOHead:
        return DINOHead(self.vit.dim, **self._head_sizes)
