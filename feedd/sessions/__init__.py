"""Sessions: opened, fed batch by batch, shared by jobs, and announced to the cache in advance."""
