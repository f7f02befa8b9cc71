"""Output tokens of a prompted ViT by name: the class token, the supervised prompts together, an unsupervised prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from promptcal.models.prompted_vit import PromptedViT

CLS, PROMPTS, UNSUPERVISED = "cls", "prompts", "unsupervised-"


def token_names(vit: PromptedViT) -> list[str]:
    """cls; prompts ([P]), if any are supervised; unsupervised-1, unsupervised-2, ... for the other prompts."""
    supervised = [PROMPTS] if vit.n_supervised else []
    return [CLS, *supervised, *_unsupervised_names(vit)]


def read_tokens(vit: PromptedViT, images: Tensor, tokens: Sequence[str]) -> Tensor:
    """The embeddings of the named tokens (n x tokens x dim), not L2-normalised."""
    first, names = vit.backbone.num_prefix_tokens, _unsupervised_names(vit)
    n_prompts = vit.n_prompts if set(tokens) & set(names) else vit.n_supervised
    output = vit.forward_tokens(images, read=first + n_prompts)
    by_name = {CLS: output[:, 0]}
    by_name.update(zip(names, output[:, first + vit.n_supervised :].unbind(dim=1), strict=False))
    if vit.n_supervised:
        by_name[PROMPTS] = vit.pool_prompts(output[:, first : first + vit.n_supervised])
    return torch.stack([by_name[token] for token in tokens], dim=1)


def _unsupervised_names(vit: PromptedViT) -> list[str]:
    return [f"{UNSUPERVISED}{i + 1}" for i in range(vit.n_prompts - vit.n_supervised)]
