"""Framings of shards: from a shard's bytes to sample spans."""
