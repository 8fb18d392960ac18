"""What a reader may do with any bytes: give an index within them whose samples can be asked for, or refuse by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.codecs.array import pin_npy
from feedd.codecs.codec_registry import make as make_codec
from feedd.errors import BadRecipe, BadSample, BadShard, ResourceExhausted, Unsupported
from feedd.formats import format_registry as formats
from feedd.formats.inline_headers import header_reader
from feedd.recipe.recipe import default_fields, needs_resolve, with_encodings
from feedd.tables import registry as forms
from feedd.values import FieldKind
from tests.fakes import making

if TYPE_CHECKING:
    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe

URL = "s3://bucket/shard"
SAMPLES_READ = 4
FIELDS_READ = 8
VALUE_BYTES_MAX = 64 << 20
REFUSED = (BadShard, BadSample, Unsupported)
LIMIT_BYTES = 16 << 20


def read_shard(format_name: str, data: bytes) -> None:
    """Index a shard and read its first samples.

    Raises:
        BadShard, Unsupported: refused. AssertionError: an index that is none.
    """
    index = formats.get(format_name).index(memoryview(data), URL)
    check_index(index, len(data))
    read_samples(index, data)


def make_shard(form: str, data: bytes, url: str = URL) -> None:
    """Make a shard in a form, with nothing here but what is asked for, and read it.

    Raises:
        BadShard, Unsupported, ResourceExhausted: refused. AssertionError: no shard came out.
    """
    name, _, params = form.partition(":")
    limited = _Limited(forms.get(name), len(data))
    try:
        made = making.make(limited, data, params, url, LIMIT_BYTES)
    except BadRecipe as error:  # arrays of different lengths, which fields= can leave out: refused by name as well
        raise BadShard(str(error)) from error
    check_index(made.index, len(made.shard))
    read_samples(made.index, made.shard)


class _Limited:
    """A form of which ranges outside of the object are refused, as a worker does."""

    def __init__(self, form: Any, size_bytes: int) -> None:
        self._form = form
        self._size_bytes = size_bytes
        self.name = form.name
        self.make = form.make

    def wanted(self, held: Any, params: str) -> Any:
        """Ask the form."""
        spans = self._form.wanted(held, params)
        if any(span.end > self._size_bytes for span in spans):
            raise BadShard("expected what is needed within the object")
        return spans


def check_index(index: ShardIndex, size_bytes: int) -> None:
    """Make sure that all of it lies within a shard of that size, and that it agrees with itself."""
    shape = (len(index.fields), index.sample_count)
    assert index.starts.shape == index.sizes.shape == shape, (index.starts.shape, index.sizes.shape, shape)
    assert index.starts.dtype == index.sizes.dtype == index.key_ends.dtype == np.int64
    assert len(set(index.fields)) == len(index.fields), index.fields
    assert not index.encodings or len(index.encodings) == len(index.fields)
    there = index.sizes >= 0
    assert (index.sizes >= -1).all()
    assert (index.starts >= 0).all()
    assert index.reasons is None or (index.reasons.shape == shape and index.reasons.dtype == np.uint8)
    assert index.reasons is None or not index.reasons[there].any()
    assert (index.starts[there] <= size_bytes - index.sizes[there]).all()
    ends = index.key_ends
    assert not ends.size or (ends[0] >= 0 and (np.diff(ends) >= 0).all() and ends[-1] <= len(index.key_blob))


def read_samples(index: ShardIndex, data: bytes) -> None:
    """Read the first samples as a user who names no fields would: values, or bad samples."""
    view = memoryview(data)
    for ordinal in range(min(SAMPLES_READ, index.sample_count)):
        index.key(ordinal)
    try:
        recipes = with_encodings(default_fields(index.fields, index.encodings), index)[:FIELDS_READ]
    except BadRecipe:
        return  # nothing that can be read without being named
    for recipe in recipes:
        try:
            codec = make_codec(_pinned(recipe, index, view))
        except (BadSample, BadRecipe):
            continue
        column = index.fields.index(recipe.sources[0])
        for ordinal in range(min(SAMPLES_READ, index.sample_count)):
            start, size = int(index.starts[column, ordinal]), int(index.sizes[column, ordinal])
            if size >= 0:
                _read_one(codec, view[start : start + size])


def _pinned(recipe: FieldRecipe, index: ShardIndex, view: memoryview) -> FieldRecipe:
    column = index.fields.index(recipe.sources[0])
    if not needs_resolve(recipe) or not (index.sizes[column] >= 0).any():
        return recipe
    sample = int(np.argmax(index.sizes[column] >= 0))
    start, size = int(index.starts[column, sample]), int(index.sizes[column, sample])
    return replace(recipe, params=pin_npy(view[start : start + size], header_reader(recipe.encoding)))


def _read_one(codec: Any, sample: memoryview) -> None:
    try:
        spec = codec.spec("x")
        shape = spec.shape if spec.kind is FieldKind.DENSE else codec.measure(sample)
        if math.prod(shape) * np.dtype(spec.dtype).itemsize <= VALUE_BYTES_MAX:
            codec.decode(sample, np.empty(shape, spec.dtype), 0)
    except BadSample:
        pass


def verdict(target: Any, data: bytes) -> bool:
    """Return whether ``data`` was read; False: refused by name. Whatever else happens is a finding."""
    try:
        target(data)
    except (*REFUSED, ResourceExhausted):
        return False
    return True
