"""The wire is what it was when it was stored: names, numbers and types of every message, field, enum and method.

``STORE_WIRE=1 python -m pytest tests/unit/wire/test_stored_wire.py`` stores it again, if something was added.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import tests.fixtures
from feedd.wire import feedd_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, EnumDescriptor

_STORED = Path(tests.fixtures.__file__).parent / "wire.txt"


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    return (f"{enum.full_name}.{value.name} = {value.number}" for value in enum.values)


def _message(message: Descriptor) -> Iterator[str]:
    yield message.full_name
    for field in message.fields:
        kind = field.message_type or field.enum_type
        group = f" of {field.containing_oneof.name}" if field.containing_oneof else ""
        many = " repeated" if field.is_repeated else ""
        yield f"{field.full_name} = {field.number}:{many} {kind.full_name if kind else field.type}{group}"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield from _enum(enum)


def _wire() -> Iterator[str]:
    file = feedd_pb2.DESCRIPTOR
    for message in file.message_types_by_name.values():
        yield from _message(message)
    for enum in file.enum_types_by_name.values():
        yield from _enum(enum)
    for service in file.services_by_name.values():
        for method in service.methods:
            streams = (
                f"{'many' if method.client_streaming else 'one'} to {'many' if method.server_streaming else 'one'}"
            )
            yield f"{method.full_name}: {method.input_type.full_name} -> {method.output_type.full_name}, {streams}"


def test_the_wire_is_what_it_was() -> None:
    """Clients and daemons one version apart work together: what was stored stays, and what is added is stored."""
    found = "".join(f"{line}\n" for line in _wire())
    if "STORE_WIRE" in os.environ:
        _STORED.write_text(found)
    assert found.splitlines() == _STORED.read_text().splitlines()
