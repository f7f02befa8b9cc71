"""Images and embeddings in shards: each input shard becomes one output shard, in any process on any machine."""
