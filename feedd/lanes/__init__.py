"""Lanes: several daemons on one node, each with its part of cores, memory and cache, under one supervisor.

The supervisor starts the lanes as processes of their own, restarts those that die, and answers for all of them on one
status page. Lanes know nothing of each other: to the plan, each is a node.
"""
