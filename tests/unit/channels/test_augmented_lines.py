"""Lines of augmented manifests, and what their attributes contribute."""

from __future__ import annotations

import pytest

from feedd.channels.augmented_lines import ManifestLines, parts_of
from feedd.errors import BadSample

# From SageMaker's documentation: an image with its class, and one with boxes.
CLASS = (
    b'{"source-ref": "s3://awsdoc-example-bucket/example_image.jpg", "class": 0, "class-metadata": '
    b'{"class-name": "cat", "confidence": 0.00, "human-annotated": "yes", "type": "groundtruth/image-classification"}}'
)
BOXES = (
    b'{"source-ref": "s3://bucket/image_filename1.jpg", "bounding-box": {"image_size": '
    b'[{ "width": 500, "height": 400, "depth": 3}], "annotations": '
    b'[{"class_id": 0, "left": 111, "top": 134, "width": 61, "height": 128}]}}'
)


def test_an_image_and_its_class() -> None:
    """The image is fetched, the number is sent as it is written, and other names are ignored."""
    image, label = parts_of(CLASS, ("source-ref", "class"), "line 1")
    assert (image.attribute, image.url, image.data) == (
        "source-ref",
        "s3://awsdoc-example-bucket/example_image.jpg",
        b"",
    )
    assert (label.url, label.data) == ("", b"0")


def test_the_order_is_that_of_the_names() -> None:
    """AttributeNames decides, not the line."""
    assert [part.attribute for part in parts_of(CLASS, ("class", "source-ref"), "")] == ["class", "source-ref"]


def test_boxes_are_sent_as_compact_json() -> None:
    """Spaces go, and nothing else changes."""
    (_, boxes) = parts_of(BOXES, ("source-ref", "bounding-box"), "")
    assert boxes.data == (
        b'{"image_size":[{"width":500,"height":400,"depth":3}],'
        b'"annotations":[{"class_id":0,"left":111,"top":134,"width":61,"height":128}]}'
    )


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("1", "1"),
        ("-0.50e+10", "-0.50e+10"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        ('""', ""),
        ('"a \\"b\\" \\u00e9\\n"', 'a "b" é\n'),
        ('"grün"', "grün"),
        ("[ 1.50 , 2e3, null ]", "[1.50,2e3,null]"),
        ('{ "a b" : " x  y " }', '{"a b":" x  y "}'),
        ("[]", "[]"),
    ],
)
def test_values_of_every_type(value: str, sent: str) -> None:
    """Texts lose their quotes, numbers stay as they are written."""
    (part,) = parts_of(f'{{"x": {value} }}'.encode(), ("x",), "")
    assert part.data.decode() == sent


def test_lines_of_a_file() -> None:
    """Blank lines, a byte order mark, CRLF and a missing last newline do not matter; numbers are the file's."""
    text = b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \t\n{"a": 2}\n\n{"a": 3}'
    lines = ManifestLines.of(text, "s3://b/m")
    assert [lines.parts(index, ("a",))[0].data for index in range(len(lines))] == [b"1", b"2", b"3"]
    assert lines.numbers.tolist() == [1, 4, 6]
    assert len(ManifestLines.of(b"\n \n", "s3://b/m")) == 0
    assert len(ManifestLines.of(b"", "s3://b/m")) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1}', "expected attribute 'x-ref', got a"),
        (b"{}", "expected attribute 'x-ref', got none"),
        (b'{"X-ref": "s3://b/k"}', "names are compared letter by letter"),
        (b'{"x-ref": 5}', "attribute 'x-ref': expected the URL of an object, got 5"),
        (b'{"x-ref": ""}', "expected the URL of an object"),
        (b'{"x-ref": "\xff"}', "expected the URL of an object"),
        (b'{"x-ref": "\\ud800"}', "expected a"),
        (b"[1]", "expected a JSON object, got '[1]'"),
        (b'{"x-ref": "s3://b/k"', "expected a JSON object"),
        (b'{"x-ref": "s3://b/k"} {}', "expected a JSON object"),
        (b'{"x-ref": ' + b"[" * 100_000, "expected a JSON object"),
    ],
)
def test_malformed_lines(line: bytes, message: str) -> None:
    """The error names the manifest and the line."""
    lines = ManifestLines.of(b"\n" + line + b"\n", "s3://b/m")
    with pytest.raises(BadSample) as caught:
        lines.parts(0, ("x-ref",))
    assert message in str(caught.value)
    assert caught.value.object == "s3://b/m line 2"
