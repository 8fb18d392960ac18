"""Mechanisms: byte budget, retry, single flight, bounded maps, the arena of slots."""
