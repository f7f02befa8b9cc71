"""Names of the presets, without importing anything heavy."""

from pathlib import Path

PRESETS_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    return sorted(file.stem for file in PRESETS_FOLDER.glob("*.yaml"))
