"""Work that is done once on a dataset, before training."""
