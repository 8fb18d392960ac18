"""One batch made: rows sent to workers, laid out, filtered, padded or packed, bad samples dealt with by policy."""
