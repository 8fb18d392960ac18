"""Where the objects of a channel lie in its directory. Pure.

A path is a part of the key, letter by letter. A key that cannot be a path without a change of letters is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import ObjectRef

PARTIAL_FOLDER: Final = ".feedd-partial"
"""Folder in a channel's directory for files that are not whole yet."""

_NAME_BYTES_MAX: Final = 255
_PATH_BYTES_MAX: Final = 3072  # PATH_MAX is 4,096, and the channel's directory needs some of it
_HINT: Final = "rename the object, or leave it out: name a narrower prefix, or list the other objects in a manifest"


def below_prefix(key: str, prefix: str) -> str:
    """Return the part of a key that names the file.

    That is the key below the folder that the prefix names: with or without a final slash. A prefix that is the whole
    key names one file. A prefix that ends within a name is cut at its last slash, so that names stay whole.

    Args:
        key: key of an object.
        prefix: text that the key begins with.
    """
    if not prefix.endswith("/") and key.startswith(f"{prefix}/") and prefix:
        return key[len(prefix) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def check_paths(refs: Sequence[ObjectRef], paths: Sequence[str]) -> None:
    """Refuse paths that are no file names, that leave the directory, or that clash.

    Args:
        refs: the objects; each object occurs once.
        paths: path of each object, relative to the channel's directory.

    Raises:
        BadRequest: names the object, and the other object of a clash.
    """
    owners: dict[str, ObjectRef] = {}
    folders: dict[str, ObjectRef] = {}
    for ref, path in zip(refs, paths, strict=True):
        reason = _reason(path)
        if reason:
            raise _refused(f"expected a key that can be a file below the channel, got {path!r}: {reason}", ref)
        other = owners.setdefault(path, ref)
        if other is not ref:
            raise _refused(f"expected one object for the file {path!r}, got also {other.url}", ref)
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = ref
            folder = folder.rpartition("/")[0]
    for path in owners.keys() & folders.keys():
        message = f"expected a file or a folder at {path!r}, got both: {folders[path].url} lies below it"
        raise _refused(message, owners[path])


def _reason(path: str) -> str:
    """Return why a text is no path of a file below a directory; empty: it is one."""
    names = path.split("/")
    octets = [len(name.encode("utf-8", "surrogatepass")) for name in names]
    reasons = {
        "it ends in a slash but has bytes": path.endswith("/"),
        "it begins with a slash": path.startswith("/"),
        "it contains the name .. or .": ".." in names or "." in names,
        "it contains an empty name": "" in names,
        "it contains a zero byte": "\0" in path,
        f"{PARTIAL_FOLDER} is for files that are not whole yet": names[0] == PARTIAL_FOLDER,
        f"a name in it has more than {_NAME_BYTES_MAX} bytes": max(octets) > _NAME_BYTES_MAX,
        f"it has more than {_PATH_BYTES_MAX} bytes": sum(octets) + len(octets) > _PATH_BYTES_MAX,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _refused(message: str, ref: ObjectRef) -> BadRequest:
    return BadRequest(message, object=ref.url, hint=_HINT, stage="files")
