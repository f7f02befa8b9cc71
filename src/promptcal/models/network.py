"""Networks that methods train: a prompted ViT, and one with a projection head per token."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.errors import ConfigError
from promptcal.models.head import CosineClassifier, DINOHead, Projection
from promptcal.models.prompted_vit import PromptedViT, TokenEmbeddings
from promptcal.runtime.distributed import ALONE, Group


class TokenOutput(NamedTuple):
    """One token's output: h, its L2-normalised embedding, and z, its projection."""

    h: Tensor
    z: Projection


class DiscoveryNetwork(nn.Module):
    """Base of every method's network: a ViT and whatever the method adds to it."""

    def __init__(self, vit: PromptedViT) -> None:
        super().__init__()
        self.vit = vit
        self.group: Group = ALONE

    @property
    def embedding_width(self) -> int:
        return self.vit.backbone.num_features

    @property
    def smallest_side(self) -> int:
        """The smallest shorter side, in pixels, that images may have in the store."""
        return self.vit.preprocessing.image_size

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        self.vit.set_compute_dtype(dtype)

    def compile(self, **options: Any) -> None:
        """Compile the ViT's blocks; a subclass adds its heads."""
        self.vit.compile(**options)

    def join_process_group(self, group: Group) -> None:
        """Train together with other processes: broadcast rank 0's values; each process gets its part of a batch."""
        if group.world > 1 and any(map(_is_active_dropout, self.modules())):
            raise ConfigError("a backbone with dropout differs between processes; train it in one process")
        self.group = group
        group.broadcast_parameters([*self.parameters(), *self.buffers()])

    def embeddings(self, images: Tensor) -> TokenEmbeddings:
        """Embeddings of both views of the whole batch, all-gathered from the processes of the group."""
        cls, prompt = self.vit(images)
        gathered = self.group.all_gather
        return TokenEmbeddings(gathered(cls, views=2), None if prompt is None else gathered(prompt, views=2))

    def all_reduce_gradients(self) -> None:
        """Sum the ViT's gradients over the processes. Heads see the whole batch and have complete gradients."""
        if self.group.world > 1:
            self.group.all_reduce_sum([p.grad for p in self.vit.parameters() if p.grad is not None])

    def load_previous(self, state: dict[str, Tensor], outputs: Callable[[], Sequence[int]]) -> None:
        """Load a finished run's weights; ``outputs`` returns its classifier's output for each category (-1 = none)."""
        self.load_state_dict(state)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def _is_active_dropout(module: nn.Module) -> bool:
    """Whether it is a dropout module of PyTorch or timm with a rate above 0."""
    return "Drop" in type(module).__name__ and any(getattr(module, name, 0) for name in ("p", "drop_prob", "prob"))


class ProjectionNetwork(DiscoveryNetwork):
    """A ViT with one DINO head per token: "cls", and "prompt" if prompts are supervised.

    With ``categories`` it has an auxiliary classifier for training; clusters still come from k-means. ``head_sizes``
    are parameters of `DINOHead`.
    """

    def __init__(self, vit: PromptedViT, categories: int = 0, **head_sizes: int) -> None:
        super().__init__(vit)
        self._head_sizes = head_sizes
        self.heads = nn.ModuleDict({"cls": self._new_head()})
        if vit.n_supervised:
            self.heads["prompt"] = self._new_head()
        self.classifier = CosineClassifier(vit.dim, categories) if categories else None

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.heads)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        for head in self.heads.values():
            head.compile(dynamic=False, **options)

    def reset_prompt_head(self) -> None:
        """Reinitialize the head of the prompt token, as the official second stage does."""
        if "prompt" in self.heads:
            self.heads["prompt"].load_state_dict(self._new_head().state_dict())

    def load_previous(self, state: dict[str, Tensor], outputs: Callable[[], Sequence[int]]) -> None:
        """Load all but the auxiliary classifier, which starts again at the clusters."""
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
