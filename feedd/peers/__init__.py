"""Shards that other daemons of the cluster have in their caches, read over the network instead of from the store."""
