"""JSON files that are wrong in every value: one error is reported, and the others take neither time nor memory."""

import json
import time
import zlib
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from promptcal.app.label_store import LabelStore
from promptcal.errors import RunError
from promptcal.run.directory import HeldOut
from promptcal.run.info import RunInfo
from promptcal.runtime import json_model
from promptcal.runtime.json_model import JSONModel

MANY = 300_000  # errors; pydantic takes 20 s for a list of a million


class Inner(JSONModel):
    names: dict[str, list[int]] = Field(default_factory=dict)


class Outer(JSONModel):
    inner: list[Inner] | None = None
    pairs: list[tuple[int, list[int]]] = Field(default_factory=list)


@pytest.mark.skipif(not json_model._CAN_FAIL_FAST, reason="pydantic 2.8 is needed")
@pytest.mark.parametrize(
    "value",
    [
        {"inner": [{}, *[0] * 1000]},
        {"inner": [{"names": {"a": [1, *"b" * 1000]}}]},
        {"pairs": [[1, [2]], *[0] * 1000]},
        {"pairs": [[1, ["a"] * 1000]]},
    ],
    ids=str,
)
def test_a_list_has_at_most_one_error(value):
    with pytest.raises(ValidationError) as found:
        Outer.model_validate_json(json.dumps(value))
    assert found.value.error_count() <= 2  # of each member of a union


def test_what_is_valid_stays_valid(tmp_path):
    value = Outer(inner=[Inner(names={"a": [1, 2]})], pairs=[(1, [2, 3])])
    value.write(tmp_path / "file.json")
    assert Outer.read(tmp_path / "file.json") == value


def many(kind):
    if kind == "list":
        return HeldOut, {"paths": [0] * MANY}, "paths.0: Input should be a valid string"
    if kind == "values":
        found = "sha256.0: Input should be a valid string"
        return RunInfo, {"format": 2, "status": "running", "sha256": dict.fromkeys(range(MANY), 0)}, found
    return HeldOut, dict.fromkeys(range(MANY)), "paths: Field required"


@pytest.mark.parametrize("kind", ["list", "values", "keys"])
def test_a_million_errors_are_one_sentence_soon(tmp_path, kind):
    model, value, message = many(kind)
    file = tmp_path / "file.json"
    file.write_text(json.dumps(value))
    started = time.process_time()
    with pytest.raises(RunError, match=r"file\.json is damaged") as found:
        model.read(file)
    assert time.process_time() - started < 3
    assert message in str(found.value)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize("content", ['{"a": %s}', '{"paths": [%s]}'])
def test_an_object_with_too_many_keys_in_a_large_file_is_not_validated(tmp_path, monkeypatch, content):
    monkeypatch.setattr(json_model, "_LARGE", 10)
    monkeypatch.setattr(json_model, "_MOST_KEYS", 100)
    file = tmp_path / "file.json"
    file.write_text(content % json.dumps(dict.fromkeys(range(101))))
    with pytest.raises(RunError, match="an object with over 100 keys"):
        HeldOut.read(file)
    file.write_text('{"paths": ["a", "b"]}')
    assert HeldOut.read(file).paths == ["a", "b"]


def test_a_label_store_with_many_errors(tmp_path):
    """A few kilobytes of SQLite unpack to them."""
    store = LabelStore(tmp_path / "labels.sqlite")
    base = {"paths": ["a"], "names": [0] * MANY, "known": [True], "clusters": "", "labelled": ""}
    store._connection.execute("INSERT INTO base VALUES ('x', ?)", (zlib.compress(json.dumps(base).encode()),))
    started = time.process_time()
    with pytest.raises(RunError, match=r"damaged \(names.0: Input should be a valid string"):
        store._base()
    assert time.process_time() - started < 3
    store.close()
    assert Path(tmp_path / "labels.sqlite").stat().st_size < 100_000
