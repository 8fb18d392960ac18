"""Which URLs an owner may read. Pure.

A rule is the start of URLs, matched letter by letter, as S3 matches a prefix: ``s3://bucket/train/``. A rule of a
bucket alone means the whole bucket, and a rule of a folder means everything below the folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from feedd.owner import Owner

FILE_ROOT: Final = "file://"
STORES_ONLY: Final = ("!file://",)
"""Rules that cover all buckets and datasets, but no local files and no web servers."""

_LITERAL: Final = "s3://"
"""Stores whose keys may hold ``..`` as plain text."""
_WEB: Final = ("https://", "http://")
"""Servers that this machine may reach and others may not, such as those of its private network."""
_CLIMBS: Final = re.compile(r"(?:^|[/\\])(?:\.|%2e){2}(?:[/\\?]|$)", re.IGNORECASE)
_HINT: Final = "the operator of this daemon lists the URLs that you may read in security.allow_urls"


@dataclass(frozen=True, slots=True)
class Access:
    """What one owner may read.

    Attributes:
        rules: starts of URLs, completed by ``completed``; None: everything that the daemon may read.
    """

    rules: tuple[str, ...] | None = None

    def covers(self, root: str, key: str) -> bool:
        """Whether an object, or everything below a prefix, may be read."""
        if self.rules is None:
            return True
        if root != FILE_ROOT:
            if self.rules == STORES_ONLY:
                return not root.startswith(_WEB)
            literal = root.startswith(_LITERAL) or _CLIMBS.search(key) is None
            return literal and f"{root}/{key}".startswith(self.rules)
        return ".." not in key.split("/") and f"{root}{key.rstrip('/')}/".startswith(self.rules)

    def check(self, root: str, key: str, url: str) -> None:
        """Refuse an object or prefix that may not be read, before the store is asked whether it exists.

        Args:
            root: root of the store.
            key: key of the object, or a prefix.
            url: the URL as the caller wrote it.

        Raises:
            PermissionDenied: no rule covers it.
        """
        if not self.covers(root, key):
            raise _refused(url)

    def check_names(self, names: Iterable[tuple[str, str]], url: str) -> None:
        """Refuse a list of (root, key) pairs if one of them may not be read; takes a microsecond for each.

        Args:
            names: the objects.
            url: the manifest that names them.

        Raises:
            PermissionDenied: no rule covers one of them.
        """
        if self.rules is None:
            return
        for root, key in names:
            if not self.covers(root, key):
                separator = "" if root == FILE_ROOT else "/"
                raise _refused(f"{root}{separator}{key}", f", which {url} names")


EVERYTHING: Final = Access()
"""For commands, which read with the rights of the user who runs them."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of a daemon.

    Attributes:
        general: rules for owners without rules of their own; None: they may read everything.
        by_owner: rules by the name of an owner's section.
    """

    general: tuple[str, ...] | None = None
    by_owner: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, owner: Owner) -> Access:
        """Return what an owner may read."""
        return Access(self.by_owner.get(owner.section, self.general))

    @property
    def folders(self) -> tuple[str, ...] | None:
        """Folders, with a final slash, below which files may be read; None: everywhere, and links are followed."""
        if self.general is None:
            return None
        rules = {rule for rules in (self.general, *self.by_owner.values()) for rule in rules}
        return tuple(sorted(rule.removeprefix(FILE_ROOT) for rule in rules if rule.startswith(FILE_ROOT)))


def completed(rule: str) -> str:
    """Return a rule as it is matched: with a slash after a bucket alone, and after the path of a folder or file.

    Raises:
        ValueError: the text is no start of a URL.
    """
    scheme, separator, rest = rule.partition("://")
    if not separator or not scheme.isascii() or not scheme.replace("-", "").isalnum():
        raise ValueError(f"expected the start of a URL, such as s3://bucket/train/ or file:///data/, got {rule!r}")
    if f"{scheme}://" == FILE_ROOT:
        if rest and not rest.startswith("/"):
            raise ValueError(f"expected three slashes, file:///data/, got {rule!r}")
        return f"{FILE_ROOT}{rest.rstrip('/')}/"
    return rule if "/" in rest or not rest else f"{rule}/"


def _refused(url: str, why: str = "") -> PermissionDenied:
    return PermissionDenied(f"expected a URL that you may read, got {url}{why}", object=url, hint=_HINT, stage="source")
