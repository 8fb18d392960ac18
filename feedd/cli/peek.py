"""``feedd peek URL``: shows what is in a dataset. Lists the objects and reads just enough of one shard."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.cache.lock import temporary_cache
from feedd.cli.flags import ConfigFlag, Flags, JsonFlag, SetFlag
from feedd.cli.report import (
    log_without_notices,
    notice_facts,
    print_json,
    print_line,
    print_table,
    say_error,
    say_notices,
)
from feedd.cli.running import open_parts, run_async
from feedd.errors import FeeddError
from feedd.notices import notices_of, summed
from feedd.units import MIB, format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.schema import Looked, Schema
    from feedd.config import Config
    from feedd.dataset.listing import DatasetView, Listing
    from feedd.notices import Notice
    from feedd.sessions.opening import Pipeline
    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe, ShardFile

_CACHE_SIZE = "16GiB"
_WHOLE_BYTES_MAX = 256 * MIB  # larger shards are not fetched only to show samples
_VALUE_BYTES_MAX = 64 * MIB
_TEXT_SHOWN = 60
_NUMBERS, _TEXTS = frozenset({"int", "float"}), frozenset({"str", "json"})


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """One field of the examined shard.

    Attributes:
        name: the field's name in ``fields=``.
        encoding: its encoding in the format, see ``recipe.encodings``; empty: a separate file.
        recipe: the recipe used without ``fields=``; empty: the field is left out.
        with_it: number of examined samples that have the field.
        bytes_min: size of the smallest value.
        bytes_max: size of the largest value.
    """

    name: str
    encoding: str
    recipe: str
    with_it: int
    bytes_min: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Value:
    """One field of one sample.

    Attributes:
        bytes: stored size; None: the sample lacks the field.
        shape: decoded shape, such as height, width and channels; None for text, numbers and bytes.
        text: a number, or the first characters of a text.
        problem: why the value cannot be decoded.
    """

    bytes: int | None
    shape: tuple[int, ...] | None = None
    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PeekReport:
    """The content of a dataset.

    Attributes:
        formats: number of shards of each format.
        objects: number of objects; a shard of small files has many.
        samples_known: number of samples of all shards; None: not counted yet.
        first: URL of the examined shard.
        looked_at: number of its samples that the figures of the fields cover.
        note: why no samples are shown.
    """

    url: str
    formats: dict[str, int]
    shards: int
    objects: int
    bytes: int
    samples_known: int | None
    first: str = ""
    looked_at: int = 0
    fields: tuple[FieldFacts, ...] = ()
    samples: tuple[tuple[str, dict[str, Value]], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a look; if the fields cannot be determined, a report without them and an error."""

    report: PeekReport
    notices: tuple[Notice, ...]
    error: FeeddError | None = None


def peek(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="s3://bucket/prefix/, an object, a folder, or augmented+s3://…")
    ],
    samples: Annotated[int, typer.Option("--samples", min=0, max=100, help="Number of samples to show.")] = 3,
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Show what is in a dataset: format, shards, bytes, fields, and the first samples.

    Reads the listing and the first MiB of one shard. Parquet and HDF5 need a whole shard. Needs no running daemon.
    """
    flags = Flags(config=config, cache_size=_CACHE_SIZE, workers="1", set=set_)
    flags.load()
    log_without_notices()
    found = _run(flags, url, samples)
    if json_:
        print_json(_facts(found))
    else:
        _show(found.report)
    say_notices(found.notices)
    if found.error is not None:
        raise typer.Exit(say_error(found.error))


def _run(flags: Flags, url: str, count: int) -> _Found:
    with temporary_cache() as folder:
        config = replace(flags, cache_dir=folder).load().config
        return run_async(_look(config, url, count))


async def _look(config: Config, url: str, count: int) -> _Found:
    from feedd.access import EVERYTHING  # noqa: PLC0415 - see run_async
    from feedd.catalog.open_request import Request  # noqa: PLC0415 - see run_async
    from feedd.catalog.schema import Schema  # noqa: PLC0415 - see run_async
    from feedd.open_spec import DataSpec, OpenSpec, OrderSpec  # noqa: PLC0415 - see run_async
    from feedd.sessions.column_types import typed  # noqa: PLC0415 - see run_async

    request = Request.of(OpenSpec(DataSpec((url,)), OrderSpec(1)), 1)
    whole = config.model_copy(update={"fetch": config.fetch.model_copy(update={"span_size": 0})})  # no object has spans
    async with open_parts(whole) as pipeline:
        stages = pipeline.stages
        listing = await pipeline.catalog.mixed(request.sources, lambda _: False, EVERYTHING)
        summary = _summary(url, listing)
        reasons = [listing.passed_over.reasons]
        try:
            await stages.lost.renew(listing.packs, stages.sources, stages.cache)
            view = await typed(stages.cache, listing.as_listed, request.read)
            schema = Schema(stages, pipeline.catalog, view, 0, strict=False)
            recipes = await schema.settled(())
            reasons.append(schema.left_out)
            summary = await _with_samples(pipeline, view, schema, recipes, (summary, count))
        except FeeddError as error:
            return _Found(summary, notices_of(summed(reasons)), error)
        return _Found(summary, notices_of(summed(reasons)))


def _summary(url: str, listing: Listing) -> PeekReport:
    """Return the facts that the listing alone gives."""
    shard_count = len(listing.refs)
    counts = listing.counts
    formats = Counter(_format(listing, shard) for shard in range(shard_count))
    packed = sum(len(packs.members.sizes) for packs in listing.packs)
    return PeekReport(
        url=url,
        formats=dict(formats.most_common()),
        shards=shard_count,
        objects=packed + shard_count - sum(map(len, listing.packs)),
        bytes=int(listing.sizes.sum()),
        samples_known=sum(counts.values()) if shard_count and len(counts) == shard_count else None,
    )


def _format(listing: Listing, shard: int) -> str:
    from feedd.dataset.pack_layout import has_lines, is_pack  # noqa: PLC0415 - see run_async
    from feedd.formats.format_registry import format_for  # noqa: PLC0415 - see run_async
    from feedd.tables.registry import only_unpacks  # noqa: PLC0415 - see run_async

    ref = listing.refs[shard]
    if is_pack(ref):
        return "augmented manifest" if has_lines(ref) else "files"
    if ref.conversion is not None and not only_unpacks(ref.conversion):
        return ref.conversion.name
    name = listing.format_of(shard).partition(":")[0] or format_for(ref.url)
    return f"{name}, compressed" if ref.conversion is not None else name


async def _with_samples(
    pipeline: Pipeline,
    view: DatasetView,
    schema: Schema,
    recipes: Sequence[FieldRecipe],
    wanted: tuple[PeekReport, int],
) -> PeekReport:
    """Return the report with the fields of a shard and its first samples."""
    from feedd.cache.pins import with_pinned  # noqa: PLC0415 - see run_async
    from feedd.flow.pools import CPU  # noqa: PLC0415 - see run_async

    summary, count = wanted
    first = schema.first
    assert first is not None, "settled without a shard"
    whole_bytes = view.refs[first.shard].size_bytes
    note = ""
    if count and not first.has_values:
        if whole_bytes <= _WHOLE_BYTES_MAX:
            first = await schema.whole(first.shard)
        else:
            note = f"no samples shown, because that needs a whole shard of {format_size(whole_bytes)}"
    values_of: Sequence[tuple[str, dict[str, Value]]] = ()
    if count and first.has_values:

        async def read(files: tuple[ShardFile, ...]) -> Sequence[tuple[str, dict[str, Value]]]:
            (index,), _ = await pipeline.stages.lost.without([first.index], files)
            return await CPU.run(_samples, files[0], index, recipes, count)

        values_of = await with_pinned(pipeline.stages.cache, [first.ref], read)
    return replace(
        summary,
        first=view.refs[first.shard].url,
        looked_at=first.index.sample_count if first.has_values else 0,
        fields=_fields(first, recipes),
        samples=tuple(values_of),
        note=note,
    )


def _fields(first: Looked, recipes: Sequence[FieldRecipe]) -> tuple[FieldFacts, ...]:
    from feedd.recipe.encodings import default_codec  # noqa: PLC0415 - see run_async

    index = first.index
    by_source = {source: one for one in recipes for source in one.sources}
    found = []
    for column, name in enumerate(index.fields):
        encoding, recipe = index.encoding_of(column), by_source.get(name)
        sizes = index.sizes[column]
        sizes = sizes[sizes >= 0] if first.has_values else sizes[:0]
        figures = (len(sizes), int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0, 0)
        how = "" if recipe is None else default_codec(encoding) or recipe.codec
        found.append(FieldFacts(name, encoding, how, *figures))
    return tuple(found)


def _samples(
    file: ShardFile, index: ShardIndex, recipes: Sequence[FieldRecipe], count: int
) -> list[tuple[str, dict[str, Value]]]:
    """Return the first samples of a shard."""
    by_source = {source: one for one in recipes for source in one.sources}
    with Path(file.path).open("rb") as data:

        def value(column: int, ordinal: int) -> Value:
            size = int(index.sizes[column, ordinal])
            if size < 0:
                return Value(None)
            recipe = by_source.get(index.fields[column])
            if recipe is None or size > _VALUE_BYTES_MAX:
                return Value(size)
            data.seek(file.data_at + int(index.starts[column, ordinal]))
            return _value(data.read(size), recipe)

        return [
            (index.key(ordinal), {name: value(column, ordinal) for column, name in enumerate(index.fields)})
            for ordinal in range(min(count, index.sample_count))
        ]


def _value(data: bytes, recipe: FieldRecipe) -> Value:
    """Return size, shape or text of one value, decoded by its recipe."""
    import numpy as np  # noqa: PLC0415 - see run_async

    from feedd.codecs.codec_registry import make  # noqa: PLC0415 - see run_async
    from feedd.recipe.encodings import is_member  # noqa: PLC0415 - see run_async

    size, member = len(data), is_member(recipe.encoding)
    if recipe.codec in _TEXTS and not member:
        return Value(size, text=_shortened(data))
    if recipe.codec == "bytes":
        return Value(size)
    try:
        codec = make(recipe)
        shape = tuple(codec.measure(memoryview(data)))
        if recipe.codec not in _NUMBERS and not (member and recipe.codec in _TEXTS):
            return Value(size, shape)
        values = np.empty(shape, codec.spec(recipe.name).dtype)
        codec.decode(memoryview(data), values, 0)
        return Value(size, text=str(values[()]) if recipe.codec in _NUMBERS else _shortened(values.tobytes()))
    except FeeddError as error:
        return Value(size, problem=error.message)


def _shortened(data: bytes) -> str:
    text = data[: 4 * _TEXT_SHOWN].decode("utf-8", "replace")
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"


def _facts(found: _Found) -> dict[str, object]:
    """Return the report for ``--json``."""
    facts = asdict(found.report)
    facts["samples"] = [
        {"key": key, "fields": {name: asdict(value) for name, value in values.items()}}
        for key, values in found.report.samples
    ]
    facts["recipe"] = recipe_of(found.report)
    facts["notices"] = notice_facts(found.notices)
    facts["error"] = None if found.error is None else found.error.message
    return facts


def recipe_of(found: PeekReport) -> dict[str, str]:
    """Return ``fields=`` with the recipes that are used if ``fields=`` is left out."""
    recipes = {one.name: one.recipe for one in found.fields if one.recipe}
    spellings = [name for name in recipes if name in {"jpg", "jpeg"}]
    if len(spellings) > 1:
        recipes = {name: how for name, how in recipes.items() if name not in spellings}
        recipes = {";".join(spellings): "image", **recipes}
    return recipes


def _show(found: PeekReport) -> None:
    several = len(found.formats) > 1
    formats = ", ".join(f"{name} ({count})" if several else name for name, count in found.formats.items())
    objects = "" if found.objects == found.shards else f" ({format_count(found.objects, 'object')})"
    shards = format_count(found.shards, "shard")
    known = "samples not counted yet" if found.samples_known is None else format_count(found.samples_known, "sample")
    print_line(f"{found.url}: {formats}, {shards}{objects}, {format_size(found.bytes)}, {known}")
    if not found.fields:
        return
    looked = f", its first {found.looked_at} samples" if found.looked_at else ""
    print_line(f"first shard: {found.first}{looked}")
    rows = []
    for one in found.fields:
        span = format_size(one.bytes_min)
        span = span if one.bytes_min == one.bytes_max else f"{span} to {format_size(one.bytes_max)}"
        figures = (str(one.with_it), span) if found.looked_at else ("", "")
        rows.append((one.name, one.encoding or "file", one.recipe or "left out", *figures))
    print_table("", ("field", "encoding", "recipe", "samples", "bytes"), rows)
    for key, values in found.samples:
        print_line(f"{key!r}:  {'   '.join(f'{name} {_shown(value)}' for name, value in values.items())}")
    if found.note:
        print_line(found.note)
    recipe = recipe_of(found)
    print_line(f"fields={json.dumps(recipe)}")
    if "image" in recipe.values():
        print_line('Give images one size with "image:224x224"; see docs/guides/recipes.md.')


def _shown(value: Value) -> str:
    """Return one value as text for a terminal; strings are quoted, so that they cannot send control characters."""
    if value.bytes is None:
        return "missing"
    if value.problem is not None:
        return f"cannot be decoded: {value.problem}"
    if value.text is not None:
        return repr(value.text) if not value.text.lstrip("-").replace(".", "").isdigit() else value.text
    size = format_size(value.bytes)
    return size if value.shape is None else f"{'x'.join(map(str, value.shape))}, {size}"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd peek s3://bucket/train/ --samples 1")(peek)
