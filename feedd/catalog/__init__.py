"""From URLs to datasets: what URLs name, what is listed, and what is learned about the shards."""
