"""A cache directory: its files, its owner, its state after a crash. Blocking: called in threads."""
