"""The ``feedd`` command."""

from feedd.cli.app import main

__all__ = ["main"]
