"""Concurrency tools: byte budget, single flight, bounded maps, thread pools, the arena of slots."""
