"""The content of a dataset: listing, packs of small objects, sidecar counts, and each node's part. Pure."""
