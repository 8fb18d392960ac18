"""Small objects into shards, once, before training."""
