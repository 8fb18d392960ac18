"""Objects that cannot be read in place: what converts them to shards, and the cache of the results."""
