"""Looks the installed packages up in the database of known vulnerabilities and says what is there.

Exits with 1 where a vulnerability has a release that mends it: then there is something to do. Others are shown and left
at that, and so is a database that cannot be reached: neither says anything against this code.
"""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
SECONDS = 300


def main() -> int:
    try:
        ended = subprocess.run(COMMAND, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return say([f"audit: NOT DONE, the database did not answer within {SECONDS} s"])
    try:
        packages = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return say([f"audit: NOT DONE, the database could not be asked ({reason[:200]})"])
    lines, code = judge(packages)
    return say(lines, code)


def judge(packages: list[dict]) -> tuple[list[str], int]:
    """What to print of pip-audit's findings, and the exit code."""
    known = [package for package in packages if "skip_reason" not in package]
    if not known:
        return [f"audit: NOT DONE, none of {len(packages)} packages could be looked up; is there a network?"], 0
    lines, mendable = [], 0
    for package in known:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"])
            mendable += bool(fixed)
            remedy = f"mended in {fixed}" if fixed else "no release mends it yet"
            lines.append(f"audit: {package['name']} {package['version']}: {vulnerability['id']}, {remedy}")
    left_out = f", {len(packages) - len(known)} could not be looked up" if len(known) < len(packages) else ""
    lines.append(f"audit: {len(known)} packages looked up{left_out}; {len(lines)} known vulnerabilities")
    if mendable:
        lines.append(f"audit: FAILED, {mendable} can be mended: upgrade, and raise the lower bound in pyproject.toml")
    return lines, int(mendable > 0)


def say(lines: list[str], code: int = 0) -> int:
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
