"""What the fake S3 server stores: objects in memory, or files under a directory."""

from __future__ import annotations

import bisect
import hashlib
import os
import re
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Stored:
    """One object; its bytes are in memory, in a file, or made when they are asked for."""

    size_bytes: int
    etag: str
    data: bytes | None = None
    path: str = ""
    endless: bool = False


def endless_bytes(start: int, size: int) -> bytes:
    """Return bytes of an object that is kept nowhere: every eight tell their own offset."""
    first = start // 8
    words = np.arange(first, (start + size + 7) // 8, dtype="<u8") * 8
    return words.tobytes()[start - 8 * first :][:size]


class Objects(Protocol):
    """Buckets of objects."""

    def buckets(self) -> list[str]:
        """Names of all buckets."""

    def has(self, bucket: str) -> bool:
        """Whether there is such a bucket."""

    def create(self, bucket: str) -> None:
        """Make a bucket."""

    def find(self, bucket: str, key: str) -> Stored | None:
        """Return the object, if it is there."""

    def put(self, bucket: str, key: str, data: bytes) -> Stored:
        """Store or replace."""

    def delete(self, bucket: str, key: str) -> None:
        """Remove; silent where absent."""

    def page(self, bucket: str, prefix: str, after: str, count: int) -> tuple[list[tuple[str, Stored]], bool]:
        """Return up to ``count`` objects after that key, and whether more follow."""


def _page(keys: list[tuple[bytes, str]], prefix: str, after: str, count: int) -> tuple[list[tuple[bytes, str]], bool]:
    start = bisect.bisect_left(keys, (prefix.encode(), ""))
    if after:
        start = max(start, bisect.bisect_right(keys, (after.encode(), after)))
    found = []
    for pair in keys[start : start + count + 1]:
        if not pair[1].startswith(prefix):
            break
        found.append(pair)
    return found[:count], len(found) > count


class MemoryObjects:
    """Objects in a dictionary; any key goes."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Stored]] = {}
        self._sorted: dict[str, list[tuple[bytes, str]]] = {}
        self._lock = threading.Lock()

    def buckets(self) -> list[str]:
        """Return the names."""
        return sorted(self._buckets)

    def has(self, bucket: str) -> bool:
        """Whether there is such a bucket."""
        return bucket in self._buckets

    def create(self, bucket: str) -> None:
        """Make a bucket; one that is there stays."""
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def remove(self, bucket: str) -> None:
        """Remove a bucket with all that is in it."""
        with self._lock:
            self._buckets.pop(bucket, None)
            self._sorted.pop(bucket, None)

    def find(self, bucket: str, key: str) -> Stored | None:
        """Return an object."""
        return self._buckets.get(bucket, {}).get(key)

    def put(self, bucket: str, key: str, data: bytes) -> Stored:
        """Store an object, in place of one of that name."""
        stored = Stored(len(data), hashlib.md5(data, usedforsecurity=False).hexdigest(), data)
        with self._lock:
            self._buckets.setdefault(bucket, {})[key] = stored
            self._sorted.pop(bucket, None)
        return stored

    def put_endless(self, bucket: str, key: str, size_bytes: int) -> Stored:
        """Store an object of ``endless_bytes``."""
        stored = Stored(size_bytes, f"endless-{size_bytes}", endless=True)
        with self._lock:
            self._buckets.setdefault(bucket, {})[key] = stored
            self._sorted.pop(bucket, None)
        return stored

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        with self._lock:
            self._buckets.get(bucket, {}).pop(key, None)
            self._sorted.pop(bucket, None)

    def page(self, bucket: str, prefix: str, after: str, count: int) -> tuple[list[tuple[str, Stored]], bool]:
        """Return up to ``count`` objects behind ``after`` in byte order, and whether there are more."""
        with self._lock:
            objects = self._buckets.get(bucket, {})
            keys = self._sorted.get(bucket)
            if keys is None:
                keys = self._sorted[bucket] = sorted((key.encode(), key) for key in objects)
            found, more = _page(keys, prefix, after, count)
            return [(key, objects[key]) for _, key in found], more


class FileObjects:
    """``root/<bucket>/<key>`` files; the ETag follows size and mtime.

    A listing goes on in what its first page found: a store does not read all its keys again for every page.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, list[tuple[bytes, str]]] = {}

    def buckets(self) -> list[str]:
        """Return the names."""
        return sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def has(self, bucket: str) -> bool:
        """Whether there is such a bucket."""
        return bucket not in {"", ".", ".."} and "/" not in bucket and os.path.isdir(f"{self._root}/{bucket}")  # noqa: PTH112 - see _path

    def create(self, bucket: str) -> None:
        """Make a bucket; one that is there stays."""
        (self._root / bucket).mkdir(parents=True, exist_ok=True)

    def find(self, bucket: str, key: str) -> Stored | None:
        """Return an object."""
        path = self._path(bucket, key)
        if ".." in path.split("/"):
            return None
        try:
            status = os.stat(path)  # noqa: PTH116 - see _path
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        tag = hashlib.md5(f"{status.st_size}:{status.st_mtime_ns}".encode(), usedforsecurity=False).hexdigest()
        return Stored(status.st_size, tag, path=path)

    def put(self, bucket: str, key: str, data: bytes) -> Stored:
        """Store an object, in place of one of that name."""
        path = Path(self._path(bucket, key))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        temporary.write_bytes(data)
        temporary.rename(path)
        stored = self.find(bucket, key)
        assert stored is not None
        return stored

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        Path(self._path(bucket, key)).unlink(missing_ok=True)

    def _path(self, bucket: str, key: str) -> str:
        """Return where an object lies; no Path, for a GET of a small one costs little else."""
        return f"{self._root}/{bucket}/{key}"

    def page(self, bucket: str, prefix: str, after: str, count: int) -> tuple[list[tuple[str, Stored]], bool]:
        """Return up to ``count`` objects behind ``after`` in byte order, and whether there are more."""
        names = self._listed.get(bucket) if after else None
        if names is None:
            names = self._listed[bucket] = _names(self._root / bucket)
        found, more = _page(names, prefix, after, count)
        objects = ((key, self.find(bucket, key)) for _, key in found)
        return [(key, stored) for key, stored in objects if stored is not None], more


class NumberedObjects:
    """Buckets of very many objects: file ``root/<bucket>/<count>`` is ``count`` objects that all hold its bytes.

    Keys are ``train/shard-00000000.bin`` and so on; of file ``<count>.tar`` they end in ``.tar``. A page of a listing
    is made when it is asked for. Files below ``root/<bucket>/files/`` are objects of the bucket too, which a listing of
    the numbered objects leaves out.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = {
            file.parent.name: (str(file), file.stat().st_size, int(file.stem), file.suffix or ".bin")
            for file in root.glob("*/[0-9]*")
        }

    def buckets(self) -> list[str]:
        """Return the names."""
        return sorted(self._files)

    def has(self, bucket: str) -> bool:
        """Whether there is such a bucket."""
        return bucket in self._files

    def create(self, bucket: str) -> None:
        """Refuse: the buckets are those found at the start."""
        raise AssertionError(f"expected no new bucket, got {bucket}")

    def find(self, bucket: str, key: str) -> Stored | None:
        """Return an object."""
        path, size_bytes, count, ending = self._files[bucket]
        match = _NUMBERED.fullmatch(key)
        if match is None or match[2] != ending or int(match[1]) >= count:
            return FileObjects(self._root / bucket).find("files", key)
        return Stored(size_bytes, numbered_etag(int(match[1])), path=path)

    def put(self, bucket: str, key: str, data: bytes) -> Stored:
        """Refuse: objects cannot change."""
        raise AssertionError(f"expected no write, got {len(data)} bytes for {bucket}/{key}")

    def delete(self, bucket: str, key: str) -> None:
        """Refuse: objects cannot change."""
        raise AssertionError(f"expected no removal, got {bucket}/{key}")

    def page(self, bucket: str, prefix: str, after: str, count: int) -> tuple[list[tuple[str, Stored]], bool]:
        """Return up to ``count`` objects behind ``after`` in byte order, and whether there are more."""
        path, size_bytes, total, ending = self._files[bucket]
        if not numbered_key(0).startswith(prefix):
            return FileObjects(self._root / bucket).page("files", prefix, after, count)
        first = bisect.bisect_right(range(total), after, key=lambda number: numbered_key(number, ending))
        numbers = range(first, min(first + count, total))
        names = ((numbered_key(number, ending), number) for number in numbers)
        return [(key, Stored(size_bytes, numbered_etag(at), path=path)) for key, at in names], numbers.stop < total


_NUMBERED = re.compile(r"train/shard-(\d{8})(\.[a-z]+)")


def numbered_key(number: int, ending: str = ".bin") -> str:
    """Return the key of one of ``NumberedObjects``."""
    return f"train/shard-{number:08d}{ending}"


def numbered_etag(number: int) -> str:
    """Return an etag as a store's: 32 digits without a pattern."""
    return f"{(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"


def _names(top: Path) -> list[tuple[bytes, str]]:
    """Return all keys below a folder, in the order of a listing."""
    found = []
    for folder, _, files in os.walk(top):
        start = os.path.relpath(folder, top)
        base = "" if start == "." else f"{start}/"
        found += [base + name for name in files if not name.endswith(".part")]
    return sorted((name.encode(), name) for name in found)
