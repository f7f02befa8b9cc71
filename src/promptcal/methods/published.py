"""Which conditions of the published figures a run does not meet."""

from promptcal.config import Config

_BACKBONE = "vit_base_patch16_224.dino"


def unmet_conditions(config: Config, benchmark: str) -> list[str]:
    """The conditions of the published figures of ``benchmark`` that a run with ``config`` does not meet."""
    unmet = []
    if getattr(config, "protocol", "default") != "published":
        unmet.append("the protocol is not the published one")
    if config.model.backbone != _BACKBONE or not config.model.pretrained:
        unmet.append(f"the backbone is not {_BACKBONE} with pretrained weights")
    return unmet
