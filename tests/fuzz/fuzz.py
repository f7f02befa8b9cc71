"""Fuzz the package for a given time: `make fuzz`, or `python tests/fuzz/fuzz.py --seconds 600 --target labels`.

Hypothesis makes the inputs and shrinks one that breaks a promise. It is then kept in `corpus/TARGET/`, which the tests
replay. Each round runs in a process of its own with a limit on its memory, so that a crash or a hang is found as well.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from targets import SECONDS, TARGETS, Finding, Workspace, try_input

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 6 * 2**30  # bytes of address space beyond that of the program
EXAMPLES = 100  # a round
LONGEST_ROUND = 20 * SECONDS


def fuzz_round(name, number, space, n_examples=EXAMPLES, on_case=lambda data: None):
    """One round; returns the smallest input that was found to break a promise, and its message, or None."""
    failed = []

    @seed(number)
    @settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(TARGETS[name][1](space))
    def try_one(data):
        on_case(data)
        try:
            try_input(name, space, data)
        except Finding as finding:
            failed.append((data, str(finding)))
            raise Finding(str(finding)[:100]) from None

    try:
        try_one()
    except Finding:
        return failed[-1]
    return None


def save_input(name, data):
    file = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def _child(name, number, root, current, result):
    """A round in a process: the input that is being tried is in ``current``, in case the process dies."""
    os.chdir(root)
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cases = 0

    def note(data):
        nonlocal cases
        cases += 1
        current.write_bytes(data)

    found = fuzz_round(name, number, Workspace(root), on_case=note)
    if found is not None:
        save_input(name, found[0])
    result.write_text(json.dumps({"cases": cases, "finding": None if found is None else found[1]}))


def run_round(name, number, space):
    """The number of cases of a round, and a finding or None."""
    current, result = space.root.with_suffix(".current"), space.root.with_suffix(".result")
    result.unlink(missing_ok=True)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(name, number, space.root, current, result), daemon=True
    )
    process.start()
    process.join(LONGEST_ROUND)
    if process.is_alive():
        process.kill()
        process.join()
        return 0, f"no end after {LONGEST_ROUND} s: {save_input(name, current.read_bytes())}"
    if not result.exists():
        return 0, f"the process ended with {process.exitcode}: {save_input(name, current.read_bytes())}"
    told = json.loads(result.read_text())
    return told["cases"], told["finding"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--target", choices=TARGETS, action="append", help="by default all")
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    given_words = parser.parse_args()
    first = time.time_ns() % 2**32 if given_words.seed is None else given_words.seed
    torch.set_num_threads(1)
    started, cases, findings = time.monotonic(), Counter(), []
    with tempfile.TemporaryDirectory(prefix="promptcal-fuzz-") as folder:
        space = Workspace(Path(folder) / "space" / "root").build()
        number = first
        while time.monotonic() - started < given_words.seconds:
            for name in given_words.target or TARGETS:
                number += 1
                done, finding = run_round(name, number, space)
                cases[name] += done
                if finding is not None:
                    findings.append(f"{name}: {finding}")
                    print(f"FOUND {findings[-1]}", flush=True)
                    space.restore()
            shown = ", ".join(f"{name} {n:,}" for name, n in cases.items())
            print(f"{time.monotonic() - started:.0f} s, {cases.total():,} cases ({shown})", flush=True)
    print(f"{cases.total():,} cases, {len(findings)} findings, first seed {first}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
