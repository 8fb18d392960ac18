"""The contenders, each a module run as a process of its own.

They run in the peers' interpreter too, so that nothing but ``feedd_arm`` may import more of feedd than ``job``.
"""
