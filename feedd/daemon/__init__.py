"""The daemon's life: starting, ready, draining, stopped. ``life.run`` imports all stages, the other modules few."""
