"""Measuring: ``feedd bench``, each stage alone and beside its peers."""
