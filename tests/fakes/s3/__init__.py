"""A small S3 server on loopback with scripted faults: what benches measure against and tests run against."""
