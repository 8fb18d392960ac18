"""TFRecord files with tf.train.Example, written by protobuf's own encoder."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from feedd.formats.tfrecord import masked_crc


def _example_class() -> Any:
    """Return protobuf's message class for tf.train.Example, from its published definition."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    label, kind = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.FieldDescriptorProto
    for name, value in (("BytesList", kind.TYPE_BYTES), ("FloatList", kind.TYPE_FLOAT), ("Int64List", kind.TYPE_INT64)):
        file.message_type.add(name=name).field.add(name="value", number=1, type=value, label=label.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        feature.field.add(
            name=name.lower(),
            number=number,
            type=kind.TYPE_MESSAGE,
            type_name=f".tf.{name}",
            oneof_index=0,
            label=label.LABEL_OPTIONAL,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=label.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kind.TYPE_MESSAGE, type_name=".tf.Feature", label=label.LABEL_OPTIONAL)
    features.field.add(
        name="feature",
        number=1,
        type=kind.TYPE_MESSAGE,
        type_name=".tf.Features.FeatureEntry",
        label=label.LABEL_REPEATED,
    )
    file.message_type.add(name="Example").field.add(
        name="features", number=1, type=kind.TYPE_MESSAGE, type_name=".tf.Features", label=label.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


Example = _example_class()
Value = bytes | list[float] | list[int]


def example(**features: Value) -> bytes:
    """Return an encoded Example."""
    made = Example()
    for name, value in features.items():
        feature = made.features.feature[name]
        if isinstance(value, bytes):
            feature.byteslist.value.append(value)
        elif value and isinstance(value[0], float):
            feature.floatlist.value.extend(value)
        else:
            feature.int64list.value.extend(value)
    encoded: bytes = made.SerializeToString()
    return encoded


def tfrecord(*records: bytes) -> bytes:
    """Return them framed."""
    framed = []
    for record in records:
        head = struct.pack("<Q", len(record))
        framed += [head, struct.pack("<I", masked_crc(head)), record, struct.pack("<I", masked_crc(record))]
    return b"".join(framed)
