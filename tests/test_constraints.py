"""The constraints files pin the versions that pyproject.toml allows."""

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest installs it

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def needed():
    """The packages that promptcal and its optional features need, with the versions allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [line for name, lines in extras.items() if name not in ("dev", "docs") for line in lines]
    requirements = map(Requirement, [*project["dependencies"], *optional])
    return {canonicalize_name(r.name): r.specifier for r in requirements}


def pinned(name):
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pins}


def test_the_lowest_versions_are_the_lower_bounds(needed):
    lowest = pinned("lowest")
    for package, specifier in needed.items():
        bounds = [Version(part.version) for part in specifier if part.operator == ">="]
        assert bounds == [lowest[package]], package


def test_the_newest_versions_are_allowed_and_newer(needed):
    lowest, newest = pinned("lowest"), pinned("newest")
    assert set(newest) == set(needed)
    for package, specifier in needed.items():
        assert newest[package] in specifier, package
        assert newest[package] >= lowest[package], package
