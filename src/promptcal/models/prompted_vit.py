"""A ViT with deep visual prompts (VPT-deep): each block has its own prompts, directly after the prefix tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from promptcal.errors import ArgumentError
from promptcal.models.backbones import create_backbone, preprocessing, require_vit
from promptcal.models.shortcuts import can_forward_prefix, embed_patches, forward_prefix_tokens


def insert_prompts(tokens: Tensor, prompts: Tensor, prefix: int, *, is_first: bool) -> Tensor:
    """Insert a block's prompts in place of the outputs of the previous block's prompts."""
    patches = tokens[:, prefix if is_first else prefix + len(prompts) :]
    own = prompts.to(tokens.dtype).expand(tokens.shape[0], -1, -1)  # len() is constant in an export
    return torch.cat([tokens[:, :prefix], own, patches], dim=1)


RunBlock = Callable[..., Tensor]


def run_block(
    block: Any,
    tokens: Tensor,
    prompts: Tensor | None,
    prefix: int,
    *,
    is_first: bool,
    rope: Tensor | None = None,
    read: int | None = None,
) -> Tensor:
    """A block of the ViT on tokens in which its own prompts replace the outputs of the previous block's prompts.

    Args:
        block: A block of timm.
        tokens: Output of the previous block, or the embedded patches (n x tokens x dim).
        prompts: The block's prompts (prompts x dim); None for a plain ViT.
        prefix: Number of tokens before the prompts.
        is_first: Whether there are no earlier prompts to replace.
        rope: The table of rotary embeddings.
        read: How many of the first tokens to compute, in a block for which that is faster; None: all.

    Returns:
        All tokens, or the first ``read`` ones.
    """
    if prompts is not None:
        tokens = insert_prompts(tokens, prompts, prefix, is_first=is_first)
    if rope is not None:
        return block(tokens, rope=rope)
    if read is not None and can_forward_prefix(block):
        return forward_prefix_tokens(block, tokens, read)
    return block(tokens)


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
        self._run_block: RunBlock = run_block
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

    def compile(self, **options: Any) -> None:
        """Compile the blocks one by one, for fixed batch sizes. Equal blocks share what is compiled.

        Compiling the whole network takes twice as long, and saves at most 8 % of a training step.

        Args:
            options: Options of `torch.compile`.
        """
        # a block is frozen or trained, with or without gradient, for training or inference, and the first or last one
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), 64))
        self._run_block = torch.compile(run_block, **{"dynamic": False, **options})

    @property
    def is_compiled(self) -> bool:
        """Whether `compile` was called."""
        return self._run_block is not run_block

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
        output = self._tokens(images, first + self.n_supervised, self._run_block)
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
        """Tokens after the final norm in the order prefix, prompts, patches; never compiled.

        Args:
            images: Normalised images (n x 3 x side x side).
            read: How many of the first tokens to compute; None: all.

        Returns:
            The tokens (n x tokens x dim).
        """
        return self._tokens(images, read, run_block)

    def _tokens(self, images: Tensor, read: int | None, run: RunBlock) -> Tensor:
        with self.arithmetic(images.device):
            vit = self.backbone
            tokens, rope = self._embed(images)
            last, is_mixed = len(vit.blocks) - 1, getattr(vit, "rope_mixed", False)
            for i, block in enumerate(vit.blocks):
                prompts = None if self.prompts is None else self.prompts[i]
                tokens = run(
                    block,
                    tokens,
                    prompts,
                    vit.num_prefix_tokens,
                    is_first=i == 0,
                    rope=rope[i] if rope is not None and is_mixed else rope,
                    read=read if i == last else None,
                )
            # models pooled by average keep their final norm in fc_norm
            final_norm = vit.fc_norm if isinstance(vit.norm, nn.Identity) else vit.norm
            return final_norm(tokens[:, :read])

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
