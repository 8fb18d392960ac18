"""A cache directory: its files, its owner, and its recovery after a crash. Blocking: called in threads."""
