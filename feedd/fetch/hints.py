"""Hints that several stores give in their errors."""

from __future__ import annotations

import errno
from typing import Final

CHANGED_HINT = (
    "the object was replaced after it was listed; open the dataset again to train on the new version, "
    "or write the next manifest with feedd index --manifest if the URL begins with frozen+"
)
MISSING_HINT = "check bucket and key; the object may have been deleted since it was listed"
ARCHIVED: Final = "the object is archived"
"""Message of the refusal to read an object that must be restored before."""

ARCHIVED_HINT = "restore it first (aws s3api restore-object), or leave it out"
PATH_HINTS: Final = {
    errno.EACCES: "run feedd as a user with that permission",
    errno.EDQUOT: "free space, or raise the user's disk quota, and run the command again",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOSPC: "free space on that disk, and run the command again",
    errno.EROFS: "the file system is mounted read-only: remount it, or name another folder",
}
"""What to do about an error of the system about a path, by its number."""
