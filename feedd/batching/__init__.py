"""Turns samples into filled slots: gathering, layout, padding, packing, and handling of bad samples."""
