"""What a dataset holds: listing, packs of small objects, sidecar counts, and what each node reads. Pure."""
