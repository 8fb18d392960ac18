"""How objects that cannot be read at random become shards that can: one module per way, run in decode workers."""
