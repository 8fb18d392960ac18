"""``feedd.pack``."""
