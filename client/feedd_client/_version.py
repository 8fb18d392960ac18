"""The one place that says which client and which protocol this is."""

from __future__ import annotations

from typing import Final

__version__ = "0.1.0"

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 0
