"""Conversion on the node: which objects are converted, by whom, what is known of the results, and their cache."""
