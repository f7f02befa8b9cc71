"""The commit of a checkout is that of git."""

import subprocess

import pytest

from promptcal._version import source_commit


@pytest.fixture
def git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def run(*arguments):
        user = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *user, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        source_commit.cache_clear()
        return done.stdout.strip()

    yield run
    source_commit.cache_clear()


def test_the_commit_is_that_of_git_and_changes_are_named(git, tmp_path, monkeypatch):
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "-a", "v1", "-m", "a tag does not replace the commit")
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another repository
    assert source_commit(tmp_path) == commit
    monkeypatch.delenv("GIT_DIR")
    (tmp_path / "code.py").write_text("2")
    source_commit.cache_clear()
    assert source_commit(tmp_path) == f"{commit}-dirty"


def test_there_is_none_without_a_checkout_or_without_git(git, tmp_path, monkeypatch):
    git("init")
    assert source_commit(tmp_path) is None  # no commit yet
    (tmp_path / "installed").mkdir()
    assert source_commit(tmp_path / "installed") is None  # inside another checkout
    monkeypatch.setenv("PATH", "")
    source_commit.cache_clear()
    assert source_commit(tmp_path) is None
