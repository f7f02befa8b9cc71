"""The audit of known vulnerabilities fails only if a fix exists, and never passes silently."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def summarize():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.summarize


def package(name, *vulnerabilities):
    found = [{"id": i, "fix_versions": list(fixed), "aliases": [], "description": ""} for i, fixed in vulnerabilities]
    return {"name": name, "version": "1.0", "vulns": found}


def unknown(name):
    return {"name": name, "skip_reason": "Dependency not found"}


def test_no_vulnerability_passes(summarize):
    assert summarize([package("a"), package("b")]) == (["audit: 2 packages looked up; 0 known vulnerabilities"], 0)


def test_a_vulnerability_with_a_fix_fails(summarize):
    assert summarize([package("a", ("CVE-1", ["1.1", "2.0"]), ("CVE-2", [])), unknown("b")]) == (
        [
            "audit: a 1.0: CVE-1, fixed in 1.1, 2.0",
            "audit: a 1.0: CVE-2, no fix released yet",
            "audit: 1 packages looked up, 1 could not be looked up; 2 known vulnerabilities",
            "audit: FAILED, 1 can be fixed: upgrade, and raise the lower bound in pyproject.toml",
        ],
        1,
    )


def test_a_vulnerability_without_a_fix_is_listed_and_passes(summarize):
    lines, code = summarize([package("a", ("CVE-2", []))])
    assert (lines[0], code) == ("audit: a 1.0: CVE-2, no fix released yet", 0)


def test_an_audit_without_any_answer_says_so(summarize):
    lines, code = summarize([unknown("a"), unknown("b")])
    assert (lines, code) == (["audit: NOT DONE, none of 2 packages could be looked up; check the network"], 0)


def test_without_a_network_the_program_prints_one_line_and_passes(tmp_path):
    pytest.importorskip("pip_audit")
    unreachable = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **unreachable, "NO_PROXY": "", "no_proxy": "", "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("audit: NOT DONE, ")
    assert len(result.stdout.strip().splitlines()) == 1
