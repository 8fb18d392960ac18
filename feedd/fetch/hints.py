"""Hints that several stores give in their errors."""

from __future__ import annotations

CHANGED_HINT = "the object was replaced while the job ran; open the dataset again to train on the new version"
MISSING_HINT = "check bucket and key; the object may have been deleted since it was listed"
