"""``feedd demo``: the main job on an embedded S3 server, or on the user's own data."""

from feedd.demo.demo_run import run

__all__ = ["run"]
