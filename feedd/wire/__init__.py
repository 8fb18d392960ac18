"""Generated stubs of feedd.proto (see proto/generate.py)."""
