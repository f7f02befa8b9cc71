"""Settings of earlier versions that were renamed or removed."""

_RENAMED = {
    "selection.every": "it is now called 'selection.validate_every'",
    **{f"{name}.epochs": "it is now called 'optim.epochs'" for name in ("gcd", "simgcd", "orca", "uno", "rankstats")},
    "gcd": "the method gcd has no section; its epochs are 'optim.epochs'",
    "switches": "set variant=paper for the recipe of the paper's text, variant=official for that of the release",
    "data.zoom": "it was removed because it gave no gain",
    "affinity.threshold": "it was removed; the threshold is always the published one, set by 'affinity.quantile'",
    "affinity.class_share": "it was removed together with the threshold rules that used it",
    "affinity.keep": "it was removed; the student's weights are kept",
    "warmup.distillation": "it is now called 'data.generic_images'",
    "warmup.distillation_weight": "it was removed; the weight is the published one",
    "warmup.distillation_epochs": "it was removed; the number of epochs is the published one",
}


def renamed_setting(key: str) -> str | None:
    """What to do about a setting of an earlier version; None for any other key."""
    for name in (key, key.partition(".")[0]):
        if name in _RENAMED:
            return f"the setting {key!r} is of an earlier version: {_RENAMED[name]}"
    return None
