"""Checksums that the fake S3 server keeps: headers of HEAD and GET, and what GetObjectAttributes answers."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.fetch.checksums import digest_of

if TYPE_CHECKING:
    from tests.fakes.s3.objects import Stored

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PARTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """Which checksum of an object is kept.

    Attributes:
        algorithm: as S3 writes it in lower case.
        part_sizes: of the upload; the checksum is then a composite one.
    """

    algorithm: str
    part_sizes: tuple[int, ...] = ()


class Checksums:
    """Computes digests when first asked, and remembers them by version.

    Args:
        default: of objects that ``keep`` does not name; None: nothing.
    """

    def __init__(self, default: Kept | None = None) -> None:
        self._default = default
        self._kept: dict[tuple[str, str], Kept] = {}
        self._found: dict[tuple[str, str, str, Kept], tuple[bytes, list[bytes]]] = {}

    def keep(self, bucket: str, key: str, kept: Kept | None) -> None:
        """Keep that of an object from now on; None: what is kept of all."""
        if kept is None:
            self._kept.pop((bucket, key), None)
        else:
            self._kept[bucket, key] = kept

    def headers(self, bucket: str, key: str, stored: Stored, *, wrong: bool = False) -> dict[str, str]:
        """Return the headers of an answer that was asked with ``x-amz-checksum-mode: ENABLED``."""
        kept = self._kept.get((bucket, key), self._default)
        if kept is None:
            return {}
        digest, _ = self._digests(bucket, key, stored, kept)
        if wrong:
            digest = bytes([digest[0] ^ 1]) + digest[1:]
        suffix = f"-{len(kept.part_sizes)}" if kept.part_sizes else ""
        return {
            f"x-amz-checksum-{kept.algorithm}": base64.b64encode(digest).decode() + suffix,
            "x-amz-checksum-type": "COMPOSITE" if kept.part_sizes else "FULL_OBJECT",
        }

    def attributes(self, bucket: str, key: str, stored: Stored, headers: dict[str, str]) -> bytes:
        """Return the body of an answer to GetObjectAttributes, one page of parts."""
        text = f"<ETag>{stored.etag}</ETag><ObjectSize>{stored.size_bytes}</ObjectSize>"
        kept = self._kept.get((bucket, key), self._default)
        if kept is not None and kept.part_sizes:
            text += self._parts(self._digests(bucket, key, stored, kept)[1], kept, headers)
        document = f'<GetObjectAttributesResponse xmlns="{_NAMESPACE}">{text}</GetObjectAttributesResponse>'
        return f"{_XML}{document}".encode()

    def _parts(self, digests: list[bytes], kept: Kept, headers: dict[str, str]) -> str:
        start = int(headers.get("x-amz-part-number-marker", "0"))
        count = min(_PARTS_MAX, int(headers.get("x-amz-max-parts", str(_PARTS_MAX))))
        end = min(start + count, len(digests))
        name = f"Checksum{kept.algorithm.upper()}"
        rows = "".join(
            f"<Part><{name}>{base64.b64encode(digests[at]).decode()}</{name}><PartNumber>{at + 1}</PartNumber>"
            f"<Size>{kept.part_sizes[at]}</Size></Part>"
            for at in range(start, end)
        )
        more = str(end < len(digests)).lower()
        return (
            f"<ObjectParts><PartsCount>{len(digests)}</PartsCount><PartNumberMarker>{start}</PartNumberMarker>"
            f"<NextPartNumberMarker>{end}</NextPartNumberMarker><MaxParts>{count}</MaxParts>"
            f"<IsTruncated>{more}</IsTruncated>{rows}</ObjectParts>"
        )

    def _digests(self, bucket: str, key: str, stored: Stored, kept: Kept) -> tuple[bytes, list[bytes]]:
        """Return the object's digest and those of its parts."""
        name = (bucket, key, stored.etag, kept)
        if name not in self._found:
            data = memoryview(Path(stored.path).read_bytes() if stored.data is None else stored.data)
            edges = [0, *itertools.accumulate(kept.part_sizes or (stored.size_bytes,))]
            parts = [digest_of(kept.algorithm, data[start:end]) for start, end in itertools.pairwise(edges)]
            whole = digest_of(kept.algorithm, b"".join(parts)) if kept.part_sizes else parts[0]
            self._found[name] = (whole, parts)
        return self._found[name]
