"""S3 without the SDK in the way of the bytes: ranged GETs to where they belong, on the cheapest way."""
