"""The cache's decisions: what stays, what is evicted, where an object goes. Pure: no files, no clock, no tasks."""
