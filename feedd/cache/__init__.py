"""Whole shards: on local disk, and in memory while the disk cannot be used."""
