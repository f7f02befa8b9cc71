"""Looks up the installed packages in a database of known vulnerabilities.

The exit code is 1 if a release fixes a vulnerability that was found: then there is something to do. Vulnerabilities
without a fix are listed but pass, and so does a database that cannot be reached: neither is a fault of this code.
"""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
TIMEOUT_SECONDS = 300


def main() -> int:
    lines, code = audit()
    print("\n".join(lines))
    return code


def audit() -> tuple[list[str], int]:
    """Run pip-audit. Returns the lines to print and the exit code."""
    try:
        result = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"audit: NOT DONE, the database did not answer within {TIMEOUT_SECONDS} s"], 0
    try:
        packages = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (result.stderr.strip().splitlines() or ["no error message"])[-1]
        return [f"audit: NOT DONE, pip-audit failed ({reason[:200]})"], 0
    return summarize(packages)


def summarize(packages: list[dict]) -> tuple[list[str], int]:
    """The lines to print for pip-audit's findings, and the exit code."""
    known = [package for package in packages if "skip_reason" not in package]
    if not known:
        return [f"audit: NOT DONE, none of {len(packages)} packages could be looked up; check the network"], 0
    lines, fixable = [], 0
    for package in known:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"])
            fixable += bool(fixed)
            status = f"fixed in {fixed}" if fixed else "no fix released yet"
            lines.append(f"audit: {package['name']} {package['version']}: {vulnerability['id']}, {status}")
    skipped = f", {len(packages) - len(known)} could not be looked up" if len(known) < len(packages) else ""
    lines.append(f"audit: {len(known)} packages looked up{skipped}; {len(lines)} known vulnerabilities")
    if fixable:
        lines.append(f"audit: FAILED, {fixable} can be fixed: upgrade, and raise the lower bound in pyproject.toml")
    return lines, int(fixable > 0)


if __name__ == "__main__":
    sys.exit(main())
