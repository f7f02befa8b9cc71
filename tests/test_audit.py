"""CI's look at known vulnerabilities: shown, a failure only where they can be mended, and never a silent pass."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def judge():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.judge


def package(name, *vulnerabilities):
    found = [{"id": i, "fix_versions": list(fixed), "aliases": [], "description": ""} for i, fixed in vulnerabilities]
    return {"name": name, "version": "1.0", "vulns": found}


def unknown(name):
    return {"name": name, "skip_reason": "Dependency not found"}


def test_nothing_found_passes(judge):
    assert judge([package("a"), package("b")]) == (["audit: 2 packages looked up; 0 known vulnerabilities"], 0)


def test_what_can_be_mended_is_shown_and_fails(judge):
    lines, code = judge([package("a", ("CVE-1", ["1.1", "2.0"]), ("CVE-2", [])), package("b")])
    assert code == 1
    assert lines == [
        "audit: a 1.0: CVE-1, mended in 1.1, 2.0",
        "audit: a 1.0: CVE-2, no release mends it yet",
        "audit: 2 packages looked up; 2 known vulnerabilities",
        "audit: FAILED, 1 can be mended: upgrade, and raise the lower bound in pyproject.toml",
    ]


def test_what_cannot_be_mended_is_shown_and_passes(judge):
    lines, code = judge([package("a", ("CVE-2", []))])
    assert code == 0
    assert "CVE-2" in lines[0]


def test_packages_that_could_not_be_looked_up_are_counted(judge):
    assert judge([package("a"), unknown("b")])[0][0].startswith(
        "audit: 1 packages looked up, 1 could not be looked up;"
    )
    assert judge([unknown("a"), unknown("b")]) == (
        ["audit: NOT DONE, none of 2 packages could be looked up; is there a network?"], 0
    )  # fmt: skip


def test_without_a_network_it_is_one_line_and_goes_on(tmp_path):
    """The real program, with no way out."""
    pytest.importorskip("pip_audit")
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, "NO_PROXY": "", "no_proxy": "", "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("audit: NOT DONE, ")
    assert len(ended.stdout.strip().splitlines()) == 1
