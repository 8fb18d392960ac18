"""Fetches bytes from object stores and local files: scheduling, parallel ranges, retries, hedges, checksums."""
