"""Every input that once broke a promise keeps it now, and the fuzzer finds, shrinks and keeps new ones."""

import pytest
from hypothesis import strategies as st
from targets import TARGETS, Finding, Workspace, command, try_input

import fuzz

CASES = sorted(path.relative_to(fuzz.CORPUS) for path in fuzz.CORPUS.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("fuzz") / "root").build()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_found_once_is_not_found_again(space, case):
    try_input(case.parts[0], space, (fuzz.CORPUS / case).read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_new_inputs(space, name):
    assert fuzz.fuzz_round(name, 7, space, n_examples=8) is None


def test_an_input_that_breaks_a_promise_is_shrunk(space, monkeypatch):
    def break_down(space, data):
        if b"x" in data:
            raise Finding("an x")

    monkeypatch.setitem(TARGETS, "labels", (break_down, lambda space: st.binary(max_size=50)))
    assert fuzz.fuzz_round("labels", 1, space, n_examples=2000) == (b"x", "an x")


@pytest.mark.parametrize(
    ("words", "found"), [(("check",), "more than a sentence|no sentence"), (("nonsense",), "no sentence")]
)
def test_broken_promises_are_noticed(words, found):
    with pytest.raises(Finding, match=found):
        command(*words, codes=(0, 2))


def test_a_file_outside_the_output_is_noticed(space, monkeypatch):
    monkeypatch.setitem(TARGETS, "labels", (lambda space, data: (space.root / "new").write_bytes(data), None))
    with pytest.raises(Finding, match="written outside the output"):
        try_input("labels", space, b"")
    (space.root / "new").unlink()


def test_a_process_that_dies_is_a_finding(space, monkeypatch, tmp_path):
    monkeypatch.setattr(fuzz, "CORPUS", tmp_path)
    monkeypatch.setitem(TARGETS, "labels", (lambda space, data: fuzz.os._exit(3), lambda space: st.just(b"deadly")))
    cases, finding = fuzz.run_round("labels", 1, space)
    assert cases == 0
    assert "the process ended with 3" in finding
    assert [path.read_bytes() for path in (tmp_path / "labels").iterdir()] == [b"deadly"]
