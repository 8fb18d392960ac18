"""Which URLs an owner may read, and which keys climb out of their folder. Pure.

A rule is the start of URLs, matched letter by letter, as S3 matches a prefix: ``s3://bucket/train/``. A rule of a
bucket or dataset alone means the whole of it, and a rule of a folder means everything below the folder.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

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
_DOTS: Final = re.compile(r"(?<![^/\\?#&=;:@])[ +]*\.[. +]*(?![^/\\?#&=;:@])")
"""A part of a path or query that has only dots and spaces. Some systems drop spaces and dots at the end of a name."""
_HUB_PARTS: Final = 3
"""Parts of a dataset's name on the Hub: ``datasets/OWNER/NAME``."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MARKED: Final = re.compile(r"[^A-Za-z0-9_/.,=()!~*$'-]|[/=]\.|^\.")
"""What a key has that must be looked at closely."""
_CODE_POINT: Final = re.compile(r"%u([0-9a-f]{4})", re.IGNORECASE)
_OVERLONG: Final = re.compile(
    rb"(?:\xc0|\xe0\x80|\xf0\x80\x80|\xf8\x80{3}|\xfc\x80{4})([\x80-\xbf./])"
    rb"|(?:\xc1|\xe0\x81|\xf0\x80\x81|\xf8\x80{2}\x81|\xfc\x80{3}\x81)([\x80-\xbf\\])"
)
"""ASCII characters in more bytes of UTF-8 than they need, which lenient decoders accept."""
_ALIKE: Final = {
    **dict.fromkeys(map(ord, "\u2044\u2215\u29f8"), "/"),
    **dict.fromkeys(map(ord, "\u2216\u29f5\xa5\u20a9"), "\\"),
    ord("\u3002"): ".",
    **dict.fromkeys(map(ord, "\xad\u200b\u200c\u200d\u2060\ufeff")),
}
"""Characters that some servers replace by a separator or dot, or ignore, besides those that NFKC replaces."""
_DECODINGS_MAX: Final = 5
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
        if climbs(root, key):
            return False
        if root == FILE_ROOT:
            return f"{root}{key.rstrip('/')}/".startswith(self.rules)
        if self.rules == STORES_ONLY:
            return not root.startswith(_WEB)
        return f"{root}/{key}".startswith(self.rules)

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
        """Refuse a list of (root, key) pairs if one of them may not be read; takes microseconds for each.

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


def climbs(root: str, key: str) -> bool:
    """Whether a store might take a key for a path that leads out of its folder.

    The one judge of everything that becomes a path or a request. Keys of S3 are names, and climb nowhere. Paths of
    files are taken as they are written. Any other store may decode a key, several times and leniently, before it
    resolves dots. So the key is decoded until it no longer changes; one that still changes then climbs. Parts
    that are a single dot, and control characters, count as climbing. Takes 0.5 microseconds for a plain name.

    Args:
        root: root of the store.
        key: key of an object, or a prefix. Several keys, joined by slashes, climb if one of them does.
    """
    if root == FILE_ROOT:
        return "\0" in key or (".." in key and ".." in key.split("/"))
    if root.startswith(_LITERAL) or _MARKED.search(key) is None:
        return False
    for _ in range(_DECODINGS_MAX + 1):
        if _DOTS.search(key) or _CONTROL.search(key):
            return True
        try:
            decoded = _decoded(key)
        except UnicodeEncodeError:  # half of a surrogate pair: no request can name it
            return True
        if decoded == key:
            return False
        key = decoded
    return True


def _decoded(text: str) -> str:
    """Return a text as it is after the next step of the most lenient decoder."""
    text = _CODE_POINT.sub(lambda match: chr(int(match[1], 16)), text)
    octets = unquote_to_bytes(text.encode("utf-8", "surrogateescape"))
    octets = _OVERLONG.sub(_shortest, octets)
    return unicodedata.normalize("NFKC", octets.decode("utf-8", "surrogateescape")).translate(_ALIKE)


def _shortest(match: re.Match[bytes]) -> bytes:
    low, high = match[1], match[2]
    return bytes([low[0] & 0x3F if low else 0x40 | (high[0] & 0x3F)])


def completed(rule: str) -> tuple[str, ...]:
    """Return a rule as it is matched: with a slash after a bucket alone, and after the path of a folder or file.

    A rule of a dataset of the Hub alone covers its revisions too, and no other dataset whose name begins alike.

    Raises:
        ValueError: the text is no start of a URL.
    """
    scheme, separator, rest = rule.partition("://")
    if not separator or not scheme.isascii() or not scheme.replace("-", "").isalnum():
        raise ValueError(f"expected the start of a URL, such as s3://bucket/train/ or file:///data/, got {rule!r}")
    if climbs(f"{scheme}://", rest):
        raise ValueError(f"expected the start of a URL without . and .. as parts, which covers nothing, got {rule!r}")
    if f"{scheme}://" == FILE_ROOT:
        if rest and not rest.startswith("/"):
            raise ValueError(f"expected three slashes, file:///data/, got {rule!r}")
        return (f"{FILE_ROOT}{rest.rstrip('/')}/",)
    parts = rest.split("/")
    if not parts[-1] or len(parts) > (_HUB_PARTS if scheme == "hf" else 1):
        return (rule,)
    is_dataset = len(parts) == _HUB_PARTS and "@" not in rest
    return (f"{rule}/", f"{rule}@") if is_dataset else (f"{rule}/",)


def _refused(url: str, why: str = "") -> PermissionDenied:
    return PermissionDenied(f"expected a URL that you may read, got {url}{why}", object=url, hint=_HINT, stage="source")
