"""``feedd demo``: trains a small model end to end on an embedded S3 server or on the user's data."""

from feedd.demo.demo_run import run

__all__ = ["run"]
