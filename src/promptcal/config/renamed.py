"""Settings of version 0.1 that were renamed or removed."""

_RENAMED = {
    "selection.every": "it is now called 'selection.validate_every'",
    **{f"{name}.epochs": "it is now called 'optim.epochs'" for name in ("gcd", "simgcd", "orca", "uno", "rankstats")},
    "gcd": "the method gcd has no section; its epochs are 'optim.epochs'",
    "switches": "set variant=paper for the recipe of the paper's text, variant=official for that of the release",
    "data.zoom": "it was removed because it gave no gain",
    "affinity.threshold": "it was removed; the threshold is always the published one, set by 'affinity.quantile'",
    "affinity.class_share": "it was removed together with the threshold rules that used it",
    "affinity.keep": "it was removed; the student's weights are kept",
    "estimation.search": "it was removed; the search is always Brent's",
}


def renamed_setting(key: str) -> str | None:
    """What to do about a setting of version 0.1; None for any other key."""
    for name in (key, key.partition(".")[0]):
        if name in _RENAMED:
            return f"the setting {key!r} is of version 0.1: {_RENAMED[name]}"
    return None
