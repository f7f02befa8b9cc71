"""`import promptcal`, `--version` and `--help` import no heavy library and take under 0.5 s of CPU time."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "torchvision", "timm", "sklearn", "scipy", "matplotlib", "pandas", "numpy", "yaml", "PIL"}
MAX_CPU_SECONDS = 1.0  # the target is 0.5; CI machines are slow

# At exit, the program writes its imported modules and its CPU time, interpreter start included, to stderr.
REPORT = """
import atexit, json, sys, time
atexit.register(lambda: print(json.dumps([sorted(sys.modules), time.process_time()]), file=sys.stderr))
"""
COMMAND = "import runpy\nsys.argv[0] = 'promptcal'\nrunpy.run_module('promptcal', run_name='__main__')"


def modules_and_seconds(program, *arguments):
    # Without coverage, which pytest-cov would also start in this process.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    result = subprocess.run(
        [sys.executable, "-c", REPORT + program, *arguments], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    modules, seconds = json.loads(result.stderr.splitlines()[-1])
    return set(modules), seconds


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("import promptcal", []),
        (COMMAND, ["--version"]),
        (COMMAND, ["--help"]),
        (COMMAND, ["fit", "--help"]),
        (COMMAND, ["table", "--help"]),
    ],
    ids=["import", "version", "help", "fit-help", "table-help"],
)
def test_start_is_fast_and_imports_nothing_heavy(program, arguments):
    runs = [modules_and_seconds(program, *arguments) for _ in range(2)]  # the first one may have to compile modules
    seconds = min(seconds for _, seconds in runs)
    print(f"{seconds:.2f} s of CPU time")
    assert runs[0][0] & HEAVY == set()
    assert seconds < MAX_CPU_SECONDS
