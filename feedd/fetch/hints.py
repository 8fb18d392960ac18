"""Hints that several stores give in their errors."""

from __future__ import annotations

CHANGED_HINT = (
    "the object was replaced after it was listed; open the dataset again to train on the new version, "
    "or write the next manifest with feedd index --manifest if the URL begins with frozen+"
)
MISSING_HINT = "check bucket and key; the object may have been deleted since it was listed"
