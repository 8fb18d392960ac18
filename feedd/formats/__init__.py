"""Formats of shards: each reader turns a shard's bytes into an index of its samples."""
