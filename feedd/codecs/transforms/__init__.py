"""Applies a recipe's transforms to decoded samples in workers; ``recipe`` has their parameters and outcomes."""
