"""The decode workers of a node: processes, who does what next, and what daemon and worker say to each other."""
