"""Objects that are samples, or files of samples: which are, how they are grouped into packs, what lies in a pack."""
