"""Builds the sdist and the wheel into dist/, and tries the wheel as a user would.

The wheel is built from the sdist. It must hold every file of the package's source and no other. It is installed with
pip into an empty virtual environment in a temporary folder, and `promptcal demo` runs there. The folder is removed
afterwards, also after a failure.

    python .ci/dist.py [--constraints FILE] [COMMAND ...]

COMMAND replaces `demo`, for example `datasets`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IGNORED = {"__pycache__"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints" / "newest.txt")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    wheel = build()
    missing, unexpected = compare_files(wheel)
    if missing:
        print(f"dist: FAILED, {wheel.name} lacks {', '.join(missing)}; add them to package-data in pyproject.toml")
    if unexpected:
        print(f"dist: FAILED, {wheel.name} has {', '.join(unexpected)}, which are not in src/promptcal")
    if missing or unexpected:
        return 1
    try:
        try_wheel(wheel, arguments.constraints.resolve(), arguments.command or ["demo", "--output", "run"])
    except subprocess.CalledProcessError as error:
        print(f"dist: FAILED, the last command above ended with exit code {error.returncode}")
        return 1
    print(f"dist: {wheel.name} is complete and works")
    return 0


def build() -> Path:
    """Build from a clean state, so that no file of an earlier build gets into the wheel."""
    for folder in ("build", "dist"):
        shutil.rmtree(ROOT / folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", ROOT / "dist", ROOT], check=True)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def compare_files(wheel: Path, source: Path = ROOT / "src") -> tuple[list[str], list[str]]:
    """The files of the package's source that the wheel lacks, and the files of the wheel that the source lacks."""
    files = [path.relative_to(source) for path in (source / "promptcal").rglob("*") if path.is_file()]
    expected = {path.as_posix() for path in files if not IGNORED & set(path.parts)}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    return sorted(expected - found), sorted(found - expected)


def try_wheel(wheel: Path, constraints: Path, command: list[str]) -> None:
    """Install the wheel into an empty environment and run the command there."""
    # Neither the checkout nor the caller's environment may provide what the wheel lacks.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    with tempfile.TemporaryDirectory(prefix="promptcal-dist-") as folder:
        venv.create(Path(folder) / "venv", with_pip=True)
        programs = Path(folder) / "venv" / ("Scripts" if os.name == "nt" else "bin")
        steps = (
            [programs / "python", "-m", "pip", "install", "--quiet", "-c", constraints, wheel],
            [programs / "promptcal", "--help"],
            [programs / "promptcal", *command],
        )
        for step in steps:
            print("dist:", *step, flush=True)
            subprocess.run(step, check=True, cwd=folder, env=environment)


if __name__ == "__main__":
    sys.exit(main())
