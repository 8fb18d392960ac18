"""The daemon's life: starting, ready, draining, stopped."""
