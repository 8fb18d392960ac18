"""Converts objects without random access to shards with it: one module per conversion, run in decode workers."""
