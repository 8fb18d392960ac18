"""What is done to a dataset once, before anybody trains on it."""
