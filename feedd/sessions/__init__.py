"""Sessions: opening, feeding batches, sharing batches between jobs, and announcing future reads to the cache."""
