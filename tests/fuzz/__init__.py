"""Mutated bytes for every reader of shards and every form: ``python -m tests.fuzz tar --seconds 30``."""
