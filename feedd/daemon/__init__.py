"""The daemon's life: starting, ready, draining, stopped."""

from feedd.daemon.life import run

__all__ = ["run"]
