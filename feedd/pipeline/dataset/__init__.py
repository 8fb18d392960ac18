"""What a dataset holds: its listing, the formats and counts of its shards, their cuts and labels."""
