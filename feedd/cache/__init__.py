"""Whole shards on local disk."""
