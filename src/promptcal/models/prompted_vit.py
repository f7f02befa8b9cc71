"""A ViT with deep visual prompts (VPT-deep): each block has its own prompts, directly after the prefix tokens."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.errors import ArgumentError
from promptcal.models.backbones import create_backbone, preprocessing, require_vit
from promptcal.models.shortcuts import can_forward_prefix, embed_patches, forward_prefix_tokens


class TokenEmbeddings(NamedTuple):
    """Embeddings, not L2-normalised: the class token, and the mean of the supervised prompts (None without any)."""

    cls: Tensor
    prompt: Tensor | None


class PromptedViT(nn.Module):
    """Any timm ViT with ``prompts`` per block; the outputs of the last block's first ``supervised`` prompts are used.

    The sequence is: class token, registers, prompts, patches. Prompts have no positional embedding. After each block
    the outputs of its prompts are replaced by the next block's prompts.

    Args:
        backbone: A timm name (weights from the hub), or a ViT of timm.
        prompts: Prompts per block; 0 is the plain ViT.
        supervised: The first prompts of the last block whose outputs form the token [P].
        train_blocks: Last blocks that are trained; prompts are always trained, and everything else is frozen.
        image_size: Side of the square images in pixels; None is the backbone's own.
        pretrained: Whether to load the weights of a named backbone.
        prompt_pooling: "mean" of the supervised prompts' outputs, or "mean-of-normalised" outputs.

    Examples:
        >>> vit = PromptedViT("vit_tiny_patch4_32.promptcal", prompts=5, supervised=2)
        >>> cls, prompt = vit(torch.zeros(3, 3, 32, 32))
        >>> cls.shape, prompt.shape
        (torch.Size([3, 192]), torch.Size([3, 192]))
    """

    def __init__(
        self,
        backbone: Any,
        prompts: int = 5,
        supervised: int = 2,
        *,
        train_blocks: int = 1,
        image_size: int | None = None,
        pretrained: bool = True,
        prompt_pooling: str = "mean",
    ) -> None:
        super().__init__()
        if isinstance(backbone, str):
            backbone = create_backbone(backbone, image_size=image_size, pretrained=pretrained)
        require_vit(backbone)
        if prompts and not 0 <= supervised <= prompts:
            raise ValueError(f"supervised must lie between 0 and prompts ({prompts}), not {supervised}")
        if prompt_pooling not in ("mean", "mean-of-normalised"):
            raise ValueError(f"prompt_pooling must be 'mean' or 'mean-of-normalised', not {prompt_pooling!r}")
        depth = len(backbone.blocks)
        if not 0 <= train_blocks <= depth:
            raise ArgumentError(f"train_blocks must lie between 0 and {depth}, not {train_blocks}")
        self.backbone: Any = backbone
        self.n_prompts = prompts
        self.n_supervised = supervised if prompts else 0
        self.prompt_pooling = prompt_pooling
        self.dim: int = backbone.embed_dim
        self.compute_dtype = torch.float32
        self.preprocessing = preprocessing(backbone)
        self.prompts = nn.Parameter(torch.empty(depth, prompts, self.dim)) if prompts else None
        if self.prompts is not None:
            nn.init.trunc_normal_(self.prompts, std=0.02)
        backbone.requires_grad_(False)
        for block in backbone.blocks[depth - train_blocks :]:
            block.requires_grad_(True)

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """Compute matrix products in float32 or bfloat16; parameters, norms and sums stay in float32."""
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype must be float32 or bfloat16, not {dtype}")
        self.compute_dtype = dtype

    @property
    def is_compiled(self) -> bool:
        """Whether `compile` was called."""
        return self._compiled_call_impl is not None

    def arithmetic(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16)

    def forward(self, images: Tensor) -> TokenEmbeddings:
        """Embed images.

        Args:
            images: Normalised images (n x 3 x side x side).

        Returns:
            The class token and [P] (each n x dim, not L2-normalised; [P] is None without supervised prompts).
        """
        first = self.backbone.num_prefix_tokens
        output = self.forward_tokens(images, read=first + self.n_supervised)
        return TokenEmbeddings(output[:, 0], self.pool_prompts(output[:, first:]) if self.n_supervised else None)

    def pool_prompts(self, supervised: Tensor) -> Tensor:
        """[P]: one embedding of the outputs of the supervised prompts.

        Args:
            supervised: Outputs of the supervised prompts (n x prompts x dim).

        Returns:
            Their mean (n x dim).
        """
        if self.prompt_pooling == "mean-of-normalised":
            supervised = F.normalize(supervised, dim=-1)
        return supervised.mean(dim=1)

    def forward_tokens(self, images: Tensor, read: int | None = None) -> Tensor:
        """Tokens after the final norm in the order prefix, prompts, patches.

        Args:
            images: Normalised images (n x 3 x side x side).
            read: How many of the first tokens to compute; None: all.

        Returns:
            The tokens (n x tokens x dim).
        """
        with self.arithmetic(images.device):
            vit = self.backbone
            tokens, rope = self._embed(images)
            for i, block in enumerate(vit.blocks):
                tokens = self._insert_prompts(i, tokens)
                if rope is not None:
                    tokens = block(tokens, rope=rope[i] if getattr(vit, "rope_mixed", False) else rope)
                elif read is not None and i == len(vit.blocks) - 1 and can_forward_prefix(block):
                    tokens = forward_prefix_tokens(block, tokens, read)
                else:
                    tokens = block(tokens)
            # models pooled by average keep their final norm in fc_norm
            final_norm = vit.fc_norm if isinstance(vit.norm, nn.Identity) else vit.norm
            return final_norm(tokens[:, :read])

    def _insert_prompts(self, block: int, tokens: Tensor) -> Tensor:
        """Insert the block's prompts in place of the outputs of the previous block's prompts."""
        if self.prompts is None:
            return tokens
        prefix = self.backbone.num_prefix_tokens
        patches = tokens[:, prefix if block == 0 else prefix + self.n_prompts :]
        prompts = self.prompts[block].to(tokens.dtype).expand(tokens.shape[0], -1, -1)  # len() is constant in an export
        return torch.cat([tokens[:, :prefix], prompts, patches], dim=1)

    def _embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Prefix and patch tokens with positional embeddings, and the table of rotary embeddings if the ViT has one."""
        vit = self.backbone
        embedded = vit._pos_embed(embed_patches(vit.patch_embed, images))
        tokens, rope = embedded if isinstance(embedded, tuple) else (vit.patch_drop(embedded), None)
        if rope is not None and self.n_prompts:
            # the table starts after the prefix, where the prompts are now: sine 0 and cosine 1 do not rotate them
            half = rope.shape[-1] // 2
            identity = rope.new_zeros(*rope.shape[:-2], self.n_prompts, rope.shape[-1])
            identity[..., half:] = 1.0
            rope = torch.cat([identity, rope], dim=-2)
        return vit.norm_pre(tokens), rope
