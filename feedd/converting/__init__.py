"""Conversion on the node: which objects are converted, by which worker, known results, and their cache."""
