"""From URLs to datasets: what they name, what is listed, and what is learned of the shards."""
