"""The student: a prompted ViT with one head for the class token and one for the supervised prompts."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.models.head import DINOHead, Projection
from promptcal.models.prompted_vit import PromptedViT


class TokenOutput(NamedTuple):
    """What the losses need of one token: h, its L2-normalised embedding, and z, its projection."""

    h: Tensor
    z: Projection


class TrainedNetwork(nn.Module):
    """What every method trains: a ViT, and whatever the method puts on top of it."""

    def __init__(self, vit: PromptedViT) -> None:
        super().__init__()
        self.vit = vit

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


class Network(TrainedNetwork):
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

    def renew_prompt_head(self) -> None:
        """Start the [P] head anew, as the official second stage does."""
        if "prompt" in self.heads:
            device = next(self.heads["prompt"].parameters()).device
            self.heads["prompt"] = self._new_head().to(device)

    def forward(self, images: Tensor) -> dict[str, TokenOutput]:
        embeddings = self.vit(images)
        outputs = {}
        for token, head in self.heads.items():
            embedding = embeddings.cls if token == "cls" else embeddings.prompt
            with self.vit.arithmetic(images.device):
                projection = head(embedding)
            outputs[token] = TokenOutput(F.normalize(embedding.float(), dim=1), projection)
        return outputs

    def _new_head(self) -> DINOHead:
        return DINOHead(self.vit.dim, **self._head_sizes)
