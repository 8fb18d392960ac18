"""What users may ask for, and what comes of it: the fields language, encodings, parameters, filters, padding. Pure."""
