"""Ids of many shards are compared by their hashes, all at once or in parts."""

import pyarrow as pa
import pytest
from shard_helpers import write_parquet

from promptcal.errors import DataError
from promptcal.shards.manifest import InputShard
from promptcal.shards.shard_folder import ShardFolder
from promptcal.shards.unique_ids import check_ids_differ, hash_texts


def fnv(text):
    found = 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found


def test_hashes_are_those_of_a_plain_loop():
    texts = ["", "a", "photo-1.jpg", "Zürich/日本.png", "photo-2.jpg"]
    assert hash_texts(pa.array(texts)).tolist() == [fnv(text) for text in texts]
    assert hash_texts(pa.array(texts).slice(2, 2)).tolist() == [fnv(text) for text in texts[2:4]]
    assert hash_texts(pa.array([], pa.string())).tolist() == []


@pytest.mark.parametrize("at_once", [1000, 7])
def test_the_same_id_in_two_shards_is_found(tmp_path, at_once):
    folder, shards = ShardFolder(tmp_path), []
    folder.shards_folder.mkdir()
    for i in range(3):
        write_parquet(folder.file(str(i)), {"id": [f"{i}-{row}" for row in range(10)]})
        shards.append(InputShard(name=str(i), kind="embeddings", location=f"in-{i}"))
    steps = []
    check_ids_differ(folder, shards, 30, lambda done, total: steps.append((done, total)), at_once)
    parts = -(-30 // at_once)
    assert steps == [(i + 1, 3 * parts) for i in range(3 * parts)]
    write_parquet(folder.file("2"), {"id": ["x", "0-4", "y"]})
    with pytest.raises(DataError, match="the id 0-4 is in in-0 and in in-2"):
        check_ids_differ(folder, shards, 23, at_once=at_once)
