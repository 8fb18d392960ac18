"""Which stage of a job is its bottleneck: what was measured over some seconds, and the rules that judge it."""
