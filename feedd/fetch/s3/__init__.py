"""S3: ranged GETs over own connections straight into files; the SDK for credentials, listings and the rest."""
