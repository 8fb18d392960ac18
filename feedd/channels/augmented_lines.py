"""The lines of augmented manifests: the only parser of their text.

``lines_in``, ``members_of`` and ``reference_of`` are for all readers. ``ManifestLines`` is for Pipe mode, which sends
the attributes of ``AttributeNames``, in this order. Of a name that ends in ``-ref`` the value is a URL, and the
object's bytes are sent. Of other names the value itself is sent. SageMaker documents that only for a number (1 is sent
as ``1``). For the others, the rules are feedd's own. A text is sent as UTF-8 without quotes, and a number as it is
written. ``true``, ``false`` and ``null`` are sent as they are, lists and objects as JSON without spaces.
"""

from __future__ import annotations

import time
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from feedd.channels.channel import s3_url
from feedd.errors import BadRequest, BadSample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

REF_SUFFIX: Final = "-ref"
"""End of the names of attributes whose values are URLs of objects."""

_LINE_BYTES_MAX: Final = 1 << 20
_NEWLINE: Final = ord("\n")
_SPACE: Final = b" \t\r\n"
_SHOWN_BYTES: Final = 80
_PIECE_BYTES: Final = 8 << 20
_LINES_AT_ONCE: Final = 256
_LINE: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def lines_in(data: Buffer, url: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, start and text of each line that is not blank; takes about a microsecond for each.

    Numbers are those of an editor, from 1. Line ends, and a byte order mark, are not part of a line.

    Args:
        data: the whole manifest.
        url: its URL, for messages.

    Raises:
        BadRequest: a line is too long.
    """
    octets = memoryview(data).cast("B")
    raw = np.frombuffer(octets, np.uint8)
    found = [np.flatnonzero(raw[at : at + _PIECE_BYTES] == _NEWLINE) + at for at in range(0, len(raw), _PIECE_BYTES)]
    ends = np.concatenate([*found, np.array([len(raw)], np.int64)])
    start = len(BOM_UTF8) if bytes(octets[: len(BOM_UTF8)]) == BOM_UTF8 else 0
    for number, end in enumerate(ends, 1):
        if not number % _LINES_AT_ONCE:
            time.sleep(0)  # releases the interpreter, for which an event loop waits
        if end - start > _LINE_BYTES_MAX:
            message = f"expected lines of at most {_LINE_BYTES_MAX} bytes, got {end - start} in line {number}"
            raise BadRequest(message, object=url, stage="source")
        text = bytes(octets[start:end])
        if text[-1:] == b"\r":
            text = text[:-1]
        if text.strip(_SPACE):
            yield number, int(start), text
        start = end + 1


def members_of(line: bytes) -> dict[str, msgspec.Raw]:
    """Return the attributes of a line, with their values as JSON.

    Raises:
        ValueError: the line is no JSON object.
    """
    try:
        return _LINE.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:_SHOWN_BYTES].decode(errors="replace")
        raise ValueError(f"expected a JSON object, got {shown!r}: {error}") from error


def reference_of(raw: msgspec.Raw) -> str:
    """Return the URL that is the value of an attribute ``-ref``; ``https://`` URLs of Amazon S3 become ``s3://``.

    Raises:
        ValueError: the value is no text, or empty.
    """
    try:
        url = _TEXT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        url = ""
    if not url:
        got = bytes(raw).strip(_SPACE)[:_SHOWN_BYTES].decode(errors="replace")
        raise ValueError(f"expected the URL of an object, got {got}")
    return s3_url(url)


class LinePart(NamedTuple):
    """What one attribute of a line contributes.

    Attributes:
        attribute: name of the attribute.
        url: URL of the object whose bytes are sent; empty: ``data`` is sent.
        data: the value, as it is sent.
    """

    attribute: str
    url: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ManifestLines:
    """The lines of an augmented manifest that are not blank.

    Attributes:
        data: the whole manifest.
        spans: int64[lines, 2]: start and end of each line in ``data``.
        numbers: int64[lines]: number of each line in the file, from 1, for messages.
        url: URL of the manifest, for messages.
    """

    data: memoryview
    spans: NDArray[np.int64]
    numbers: NDArray[np.int64]
    url: str

    @classmethod
    def of(cls, data: Buffer, url: str) -> ManifestLines:
        """Find the lines.

        Raises:
            BadRequest: a line is too long.
        """
        found = [(number, start, start + len(text)) for number, start, text in lines_in(data, url)]
        columns = np.array(found, np.int64).reshape(-1, 3)
        return cls(memoryview(data).cast("B"), columns[:, 1:], columns[:, 0], url)

    def __len__(self) -> int:
        return int(self.spans.shape[0])

    def parts(self, index: int, attributes: Sequence[str]) -> list[LinePart]:
        """Return what the attributes of a line contribute, in their order.

        Raises:
            BadSample: the line is no JSON object, lacks an attribute, or has one of the wrong type.
        """
        start, end = self.spans[index].tolist()
        return parts_of(bytes(self.data[start:end]), attributes, f"{self.url} line {self.numbers[index]}")


def parts_of(line: bytes, attributes: Sequence[str], origin: str) -> list[LinePart]:
    """Return what the attributes of a line contribute; see ``ManifestLines.parts``.

    Args:
        line: the line, without the newline.
        attributes: names of the attributes.
        origin: the manifest and the line, for messages.
    """
    try:
        values = members_of(line)
    except ValueError as error:
        raise BadSample(str(error), object=origin, stage="channels") from error
    return [_part(values, name, origin) for name in attributes]


def _part(values: dict[str, msgspec.Raw], name: str, origin: str) -> LinePart:
    raw = values.get(name)
    if raw is None:
        known = ", ".join(values) or "none"
        raise BadSample(
            f"expected attribute {name!r}, got {known}",
            object=origin,
            hint="names are compared letter by letter; each line needs all of AttributeNames",
            stage="channels",
        )
    try:
        if name.endswith(REF_SUFFIX):
            return LinePart(name, reference_of(raw), b"")
        octets = bytes(raw).strip(_SPACE)
        if octets[:1] == b'"':
            return LinePart(name, "", _TEXT.decode(octets).encode())
    except (msgspec.DecodeError, ValueError) as error:
        raise BadSample(f"attribute {name!r}: {error}", object=origin, stage="channels") from error
    return LinePart(name, "", bytes(msgspec.json.format(octets, indent=-1)))
