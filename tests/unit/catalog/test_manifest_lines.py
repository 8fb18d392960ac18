"""The text of an augmented manifest: what is a line, what is refused, and which objects the lines name."""

from __future__ import annotations

import pytest

from feedd.catalog.augmented_manifest import parse_lines
from feedd.dataset.line_packs import packs_of_lines
from feedd.errors import BadRequest
from feedd.values import ObjectRef

URL = "augmented+s3://memory/train.manifest"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "at least one line"),
        (b"\n \n\r\n", "at least one line"),
        (b'[{"prefix": "s3://b/"}, "x"]', "JSON array"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"nonsense\nmore\n", "line 1: expected a JSON object"),
        (b'{"a": 1}\n{"A": 2}\n', "differ in more than case, got 'a' and 'A'"),
        (b'{"": 1}\n', "1 to 256 characters"),
        (b'{"a": "%s"}\n' % (b"x" * (1 << 20)), "in line 1"),
        (b"{%s}\n" % b",".join(b'"a%d": 1' % n for n in range(300)), "at most 256 attributes"),
    ],
)
def test_a_text_that_is_no_augmented_manifest(text: bytes, message: str) -> None:
    """The error says what is expected, and names the manifest."""
    with pytest.raises(BadRequest) as caught:
        parse_lines(text, URL)
    assert message in caught.value.message
    assert caught.value.object == URL


def test_an_object_of_several_lines_is_asked_for_once() -> None:
    """Each different object has one number, whichever lines and attributes name it."""
    text = b'{"a-ref": "s3://b/x.npy", "b-ref": "s3://b/y.txt"}\n{"b-ref": "https://b.s3.amazonaws.com/x.npy"}\n'
    found = parse_lines(text, URL)
    assert list(found.names) == [("s3://b", "x.npy"), ("s3://b", "y.txt")]
    assert found.lines.targets.tolist() == [[0, 1], [-1, 0]]
    assert [one.encoding for one in found.lines.references] == ["npy", "text"]
    manifest, first, second = (ObjectRef("s3://b", key, 90, "e") for key in ("m", "x", "y"))
    packs = packs_of_lines(manifest, found.lines, [first, second], {1})
    index = packs.own_index(0)
    assert index.sizes.tolist() == [[90, -1], [-1, 90]]
    assert index.key(1) == "00000002"
    assert [packs.members.ref(number).key for number in packs.span(0)] == ["m", "x", "y", "m", "x"]


def test_lines_have_the_numbers_of_an_editor() -> None:
    """Blank lines count; line ends of Windows, a byte order mark and a missing last line end are accepted."""
    text = b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}\n{"a": 3}'
    lines = parse_lines(text, URL).lines
    assert lines.numbers.tolist() == [1, 4, 5]
    spans = zip(lines.starts.tolist(), lines.sizes.tolist(), strict=True)
    assert [text[at : at + size] for at, size in spans] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']
