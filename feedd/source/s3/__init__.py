"""S3 through the SDK: credentials, endpoints, listings, and whatever comes up once."""
