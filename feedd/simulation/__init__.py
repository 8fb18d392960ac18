"""Runs a job in virtual time: the real planner, cache and fetch scheduler over models of store, workers and trainer."""
