"""S3 without the SDK in the way of the bytes: ranged GETs received straight into the target."""
