"""The part of recipes that is pure: fields language, encodings, parameters, filters and padding, and their results."""
