"""RecordIO as its writers lay it out, and aialgs.data.Record by protobuf's own encoder."""

from __future__ import annotations

import itertools
import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MAGIC = struct.pack("<I", 0xCED7230A)


def part(payload: bytes, kind: int = 0) -> bytes:
    """Return one part: head, payload, padding."""
    return MAGIC + struct.pack("<I", kind << 29 | len(payload)) + payload + bytes(-len(payload) % 4)


def recordio(*payloads: bytes) -> bytes:
    """Return whole records."""
    return b"".join(map(part, payloads))


def dmlc(payload: bytes) -> bytes:
    """Return a record as dmlc writes it: split where the payload has the magic at a multiple of four."""
    cuts = [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == MAGIC]
    if not cuts:
        return part(payload)
    edges = [-4, *cuts, len(payload)]
    pieces = [payload[low + 4 : high] for low, high in itertools.pairwise(edges)]
    kinds = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(piece, kind) for piece, kind in zip(pieces, kinds, strict=True))


def image_record(image: bytes, labels: list[float], number: int) -> bytes:
    """Return what im2rec packs: one label goes into the head, several behind it."""
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], number, 0) + image
    return struct.pack(f"<IfQQ{len(labels)}f", len(labels), 0, number, 0, *labels) + image


def _record_class() -> Any:
    """Return protobuf's message class for aialgs.data.Record, from its published definition."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="feedd_test", syntax="proto2")
    for name, value in (
        ("Float32Tensor", kind.TYPE_FLOAT),
        ("Float64Tensor", kind.TYPE_DOUBLE),
        ("Int32Tensor", kind.TYPE_INT32),
    ):
        tensor = file.message_type.add(name=name)
        for number, (field, its) in enumerate(
            (("values", value), ("keys", kind.TYPE_UINT64), ("shape", kind.TYPE_UINT64)), 1
        ):
            made = tensor.field.add(name=field, number=number, type=its, label=kind.LABEL_REPEATED)
            made.options.packed = True
    raw = file.message_type.add(name="Bytes")
    raw.field.add(name="value", number=1, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)
    union = file.message_type.add(name="Value")
    union.oneof_decl.add(name="value")
    for number, name in ((2, "Float32Tensor"), (3, "Float64Tensor"), (7, "Int32Tensor"), (9, "Bytes")):
        union.field.add(
            name=name.lower(),
            number=number,
            type=kind.TYPE_MESSAGE,
            type_name=f".feedd_test.{name}",
            oneof_index=0,
            label=kind.LABEL_OPTIONAL,
        )
    record = file.message_type.add(name="Record")
    for number, name in enumerate(("features", "label"), 1):
        entry = record.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
        entry.field.add(
            name="value", number=2, type=kind.TYPE_MESSAGE, type_name=".feedd_test.Value", label=kind.LABEL_OPTIONAL
        )
        record.field.add(
            name=name,
            number=number,
            type=kind.TYPE_MESSAGE,
            type_name=f".feedd_test.Record.{name.capitalize()}Entry",
            label=kind.LABEL_REPEATED,
        )
    record.field.add(name="uid", number=3, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("feedd_test.Record"))


Record = _record_class()
