"""Resolves the recipes of every source against its data, and checks that all sources produce the same fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.batching.packing import packed_specs
from feedd.batching.packing import slot_bytes as packed_slot_bytes
from feedd.batching.slot_layout import sample_bytes, slot_bytes
from feedd.catalog.schema import Schema
from feedd.errors import BadRecipe
from feedd.flow.tasks import both, run_all
from feedd.recipe.encodings import MEMBER, parse_encoding
from feedd.recipe.low_precision import item_bytes
from feedd.recipe.packed_rows import packing_of
from feedd.recipe.padding import MASK_SUFFIX, Pad, batch_specs, mask_ndim, parse_pad, unique
from feedd.recipe.recipe import check_fields, needs_resolve, spec_of
from feedd.values import Cursor, FieldRecipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.open_request import Request
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.notices import Amount, NoticeKind
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.recipe.pack_params import Packing
    from feedd.shard_index import ShardIndex
    from feedd.values import TensorSpec

Recipe = tuple["FieldRecipe", ...]
"""The recipes of all fields, in the order of the batch."""

_ANY = ("bytes", "{}", MEMBER)
"""The codec of fields that are only measured."""

_LOOKED_AT = 8
"""Shards that are read to estimate the size of batches, if the first ones have no samples."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """The recipe of each shard. All recipes produce the same fields of the same kinds, types and shapes.

    Attributes:
        distinct: each recipe once.
        of_source: the index in ``distinct`` of each source's recipe.
        firsts: the first dataset index of each source.
    """

    distinct: tuple[Recipe, ...]
    of_source: tuple[int, ...] = (0,)
    firsts: tuple[int, ...] = (0,)

    @property
    def packing(self) -> Packing | None:
        """How fields are packed; None: they are not packed."""
        return packing_of(self.distinct[0])

    @property
    def kinds(self) -> tuple[TensorSpec, ...]:
        """The spec of each field before padding and packing."""
        return tuple(map(spec_of, self.distinct[0]))

    @property
    def pads(self) -> tuple[Pad | None, ...]:
        """How each field is padded; None: it is not."""
        return tuple(parse_pad(field.pad) for field in self.distinct[0])

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of all fields of a batch, with the fields that padding and packing add.

        Raises:
            BadRecipe: two fields have the same name.
        """
        packing = self.packing
        if packing is not None:
            return unique(packed_specs(self.kinds[0], packing, self.kinds[1:]))
        return batch_specs(zip(self.kinds, self.pads, strict=True))

    def rows(self, shards: NDArray[np.int64], shard_no: NDArray[np.int32]) -> list[tuple[Recipe, NDArray[np.intp]]]:
        """Return the rows of a batch that each recipe is for.

        Args:
            shards: int64[n], dataset indices of the batch's shards.
            shard_no: int32[rows], the index in ``shards`` of each row's shard.
        """
        source = np.searchsorted(np.array(self.firsts), shards, "right") - 1
        number = np.array(self.of_source)[source][shard_no]
        return [(self.distinct[which], np.flatnonzero(number == which)) for which in np.unique(number).tolist()]


@dataclass(frozen=True, slots=True)
class Resolved:
    """One source's recipe.

    Attributes:
        index: the index of the shard that was read; None: none was needed.
        left_out: data that is in no field or was changed, if the user named no fields.
        fields: fields of the shard that determined the fields; None: the user named them.
    """

    recipe: Recipe
    index: ShardIndex | None
    left_out: Mapping[NoticeKind, Amount]
    fields: frozenset[str] | None = None


def resolved_by(request: Request) -> tuple[TensorSpec, ...] | None:
    """Return the fields if the recipes alone determine them, or None if the data must be read.

    Raises:
        BadRequest: the sources' recipes do not agree.
    """
    if not all(request.wanted) or any(needs_resolve(field) for recipe in request.wanted for field in recipe):
        return None
    return agreed(request, request.wanted, (0,) * len(request.wanted)).specs


async def resolve(
    stages: Stages, catalog: DatasetCatalog, view: DatasetView, reader: AnyReader, request: Request
) -> tuple[Recipes, list[Resolved]]:
    """Resolve each source's recipe against its data. The result is a property of the dataset (see ``Schema``).

    Raises:
        BadRequest: the data does not determine the fields, a field is missing, or the sources do not agree.
        BadShard, NotFound, ...: raised while the shard is read.
    """
    orders = reader.orders(Cursor(request.spec.session.epoch))
    found = await run_all(
        _resolve(
            catalog,
            view,
            request.wanted[source],
            request,
            Schema(stages, catalog, view, source, strict=request.strict, own=int(order[0]) if len(order) else None),
            order,
        )
        for source, order in enumerate(orders)
    )
    return agreed(request, [one.recipe for one in found], view.listing.firsts), found


def estimated_bytes(specs: Sequence[TensorSpec], batch_size: int, found: Sequence[Resolved]) -> int:
    """Return the size of a slot that fits the batches of any source, estimated from the first shards."""
    packing = packing_of(found[0].recipe)
    if packing is not None and (index := found[0].index) is not None:
        field = found[0].recipe[0]
        item = _value_bytes(field)
        columns = [index.fields.index(source) for source in field.sources if source in index.fields]
        sizes = np.maximum(index.sizes_of(columns[:1]), np.int64(0))  # an empty shard has none
        return packed_slot_bytes(specs, packing, batch_size, sizes // item)
    return max(
        (
            slot_bytes(specs, batch_size, one.index, one.recipe, dims=_likely_dims(one.recipe, one.index))
            for one in found
            if one.index is not None
        ),
        default=1,
    )


def _value_bytes(field: FieldRecipe) -> int:
    """Return the bytes that a stored value takes at least, or nearly always."""
    stored = parse_encoding(field.encoding)
    if stored is not None:
        return 1 if stored.varint else item_bytes(stored.low_precision or stored.dtype)
    if field.codec == "npy":
        return np.dtype(spec_of(field).dtype).itemsize
    return 2  # tokens of text, and numbers followed by a comma


def _likely_dims(recipe: Recipe, index: ShardIndex) -> dict[str, tuple[int, ...]]:
    """Return the likely shapes of padded fields and their masks, from the largest sample of a first shard."""
    found: dict[str, tuple[int, ...]] = {}
    for field in recipe:
        pad = parse_pad(field.pad)
        if pad is None:
            continue
        spec = spec_of(field)
        sizes = sample_bytes(spec, field, index, None)
        most = int(sizes.max(initial=0)) // np.dtype(spec.dtype).itemsize
        found[field.name] = pad.dims(np.array([[most], [0]])) if spec.ndim == 1 else (most, *(1,) * (spec.ndim - 1))
        found[field.name + MASK_SUFFIX] = found[field.name][: mask_ndim(spec.ndim)]
    return found


def agreed(request: Request, recipes: Sequence[Recipe], firsts: tuple[int, ...]) -> Recipes:
    """Return the recipes of all sources, each with its fields in the order of the first source.

    Raises:
        BadRequest: they do not produce the same fields.
    """
    if len(recipes) == 1:
        return Recipes((recipes[0],))
    wanted = {field.name: spec_of(field) for field in recipes[0]}
    ordered: list[Recipe] = []
    for source, recipe in enumerate(recipes):
        its = {field.name: field for field in recipe}
        if its.keys() != wanted.keys() or len(its) != len(recipe):
            raise _disagree(request, source, f"the fields {', '.join(wanted)}", ", ".join(f.name for f in recipe))
        for name, spec in wanted.items():
            if spec_of(its[name]) != spec:
                raise _disagree(request, source, f"field {name!r} as {_say(spec)}", _say(spec_of(its[name])))
        ordered.append(tuple(its[name] for name in wanted))
    distinct = tuple(dict.fromkeys(ordered))
    return Recipes(distinct, tuple(distinct.index(recipe) for recipe in ordered), firsts)


def _filter_fields(request: Request, recipe: Sequence[FieldRecipe]) -> list[FieldRecipe]:
    """Return the fields that filters and ``bucket_by`` read."""
    found = [
        field
        for one in request.filters
        for field in one.readers(recipe) or (FieldRecipe(one.field, one.sources(recipe), *_ANY),)
    ]
    if request.spec.order.bucket_by:
        found.append(FieldRecipe(request.spec.order.bucket_by, request.bucket_sources, *_ANY))
    return found


async def _resolve(
    catalog: DatasetCatalog, view: DatasetView, wanted: Recipe, request: Request, schema: Schema, order: Sequence[int]
) -> Resolved:
    check_fields(wanted, [source for field in wanted for source in field.sources])
    beside = _filter_fields(request, wanted)
    told = schema.by_name((*wanted, *beside)) if wanted else None
    if told is not None:
        index = await _own(catalog, view, order)
        here = index.fields if index is not None and index.sample_count else None
        lacking = [one for one in (*wanted, *beside) if here is not None and not set(one.sources) & set(here)]
        if lacking:
            await schema.settled(tuple(lacking))
        return Resolved(told[: len(wanted)], index, {})
    if wanted and not order and not any(map(needs_resolve, wanted)):
        return Resolved(wanted, None, {})  # this rank reads no shard
    settled = schema.settled(wanted, lambda recipe: _filter_fields(request, recipe), request.spec.data.only)
    recipe, index = await both(settled, _own(catalog, view, order))
    return Resolved(recipe, index, schema.left_out, schema.fields)


async def _own(catalog: DatasetCatalog, view: DatasetView, order: Sequence[int]) -> ShardIndex | None:
    """Return the index of the session's first shard with samples, or else of another, or None if it reads none."""
    index = None
    for shard in order[:_LOOKED_AT]:
        index = await catalog.index(view, shard)
        if index.sample_count:
            break
    return index


def _disagree(request: Request, source: int, expected: str, got: str) -> BadRecipe:
    urls = request.sources
    return BadRecipe(
        f"expected {expected} in every mixed dataset, as in {urls[0][0]}, got {got or 'none'}",
        object=" ".join(urls[source]),
        hint="give the source its own fields= that produce the same fields",
        stage="decode",
    )


def _say(spec: TensorSpec) -> str:
    shape = "x".join(map(str, spec.shape)) if spec.shape else f"of {spec.ndim} dimensions"
    return f"{spec.kind.value} {spec.dtype} {shape}"
