"""Forms: how shards that can be read at random are made of objects that cannot."""
