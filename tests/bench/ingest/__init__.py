"""``python -m tests.bench.ingest``: from the socket to whole files of the cache, beside other clients of S3."""
