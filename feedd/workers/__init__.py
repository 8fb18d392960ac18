"""The decode workers of a node: processes, the schedule of their work, and their messages with the daemon."""
