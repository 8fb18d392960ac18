"""Freezes a listing: checks that it holds small objects, decides the labels, and cuts it into shards."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.dataset.object_labels import folder_labels
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_layout import is_pack
from feedd.dataset.packs import Members, texts_at
from feedd.errors import BadRequest, Unsupported
from feedd.pack.frozen_source import FrozenSource
from feedd.pack.packed_sample import IMAGES, LABEL, RESIZABLE, Fields
from feedd.pack.shard_plan import sample_order, shard_cuts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from feedd.catalog.url_listing import Resolved
    from feedd.dataset.packs import Packs
    from feedd.pack.pack_options import PackOptions
    from feedd.pack.packed_sample import ShardWriter

_SAMPLE_BYTES_MAX: Final = 2 << 30  # a shard is written from memory
_CLASSES_LEAST: Final = 2
_LABEL_BYTES: Final = 4  # of a label, about


def freeze(
    resolved: Resolved, options: PackOptions, writer: ShardWriter, versions: Mapping[str, str], scale: float = 1.0
) -> FrozenSource:
    """Return the frozen source of a listing; takes microseconds per object.

    Args:
        resolved: the listing of the source.
        options: what the user asked for.
        writer: writes the shards.
        versions: versions of the libraries that decide the bytes of the shards.
        scale: bytes of resized images over the bytes of their objects.

    Raises:
        BadRequest, Unsupported: the source is not made of small objects, or the format cannot hold them.
    """
    packs = _only_samples(resolved, options.source)
    _check_names(packs.members)
    classes = _classes(packs, options)
    fields = _fields(packs.members, labelled=bool(classes))
    writer.check(fields)
    if options.resize is not None:
        _check_resizable(fields)
    firsts = np.flatnonzero(np.diff(packs.members.sample, prepend=-1))
    order = sample_order(len(firsts), options.seed)
    members = _ordered(packs.members, np.append(firsts, len(packs.members.sample)), order)
    sizes = np.add.reduceat(
        (writer.framed_bytes(members.sizes) * scale).astype(np.int64),
        np.flatnonzero(np.diff(members.sample, prepend=-1)),
    )
    if classes:
        sizes += int(writer.framed_bytes(np.array([_LABEL_BYTES]))[0])
    largest = int(sizes.argmax())
    if sizes[largest] > _SAMPLE_BYTES_MAX:
        first = int(np.searchsorted(members.sample, largest))
        raise Unsupported(
            f"expected samples of at most {_SAMPLE_BYTES_MAX} bytes, got one of {sizes[largest]}",
            object=members.ref(first).url,
            stage="pack",
        )
    cuts = shard_cuts(np.maximum(sizes, 1), options.shard_bytes)
    options = replace(options, labels="folder" if classes else "none")
    return FrozenSource(options, members, cuts, classes, fields, versions)


def _only_samples(resolved: Resolved, source: str) -> Packs:
    """Return the samples of a listing.

    Raises:
        BadRequest: there are shards among the objects, or several folders.
    """
    shard = next((ref for ref in resolved.refs if not is_pack(ref)), None)
    if shard is not None:
        raise BadRequest(
            "expected objects that are samples, such as images, got a shard of many samples",
            object=shard.url,
            hint="feedd reads shards as they are; feedd index counts their samples",
            stage="pack",
        )
    if len(resolved.packs) != 1:
        raise BadRequest(
            f"expected one folder or prefix, got {len(resolved.packs)}",
            object=source,
            hint="pack each folder into a destination of its own",
            stage="pack",
        )
    return resolved.packs[0]


def _check_names(members: Members) -> None:
    """Check that all names are text, which manifests and formats need."""
    try:
        members.keys.decode()
    except UnicodeDecodeError as error:
        number = int(np.searchsorted(members.key_ends, error.start, "right"))
        raise BadRequest(
            "expected names of UTF-8, got other bytes",
            object=members.ref(number).url,
            hint="rename the file",
            stage="pack",
        ) from error


def _classes(packs: Packs, options: PackOptions) -> tuple[str, ...]:
    """Return the class names if folders are labels, else an empty tuple.

    Raises:
        BadRequest: the user wants labels, and a sample lies in no folder or has a label already.
    """
    if options.labels == "none":
        return ()
    extensions = set(_extensions(packs.members))
    try:
        labels = folder_labels([packs])
    except ValueError:  # too many folders
        labels = None
    if labels is not None and not labels.missing and LABEL not in extensions:
        folder = options.labels == "folder" or (len(labels.classes) >= _CLASSES_LEAST and extensions <= IMAGES)
        return labels.classes if folder else ()
    if options.labels == "auto":
        return ()
    if LABEL in extensions:
        got = f"an object of extension {LABEL}"
    elif labels is None:
        got = "too many folders"
    else:
        got = f"{labels.first_missing!r} in no folder"
    raise BadRequest(
        f"expected every sample in a folder that is its class, got {got}",
        object=options.source,
        hint="write --labels none to pack the objects without labels",
        stage="pack",
    )


def _fields(members: Members, *, labelled: bool) -> Fields:
    counts: dict[str, int] = {}
    for extension in _extensions(members):
        counts[extension] = counts.get(extension, 0) + 1
    total = int(members.sample[-1]) + 1
    if labelled:
        counts[LABEL] = total
    return Fields(counts, total)


def _check_resizable(fields: Fields) -> None:
    """Check that all images can be written again."""
    wrong = (IMAGES - RESIZABLE) & set(fields.counts)
    if wrong or not RESIZABLE & set(fields.counts):
        raise Unsupported(
            f"expected images of {', '.join(sorted(RESIZABLE))} to resize, got {', '.join(sorted(wrong)) or 'none'}",
            hint="pack without --resize",
            stage="pack",
        )


def _extensions(members: Members) -> Iterator[str]:
    ends: list[int] = members.key_ends.tolist()
    for low, high in itertools.pairwise([0, *ends]):
        yield split_name(members.keys[low:high].decode("utf-8", "surrogatepass"))[1]


def _ordered(members: Members, firsts: NDArray[np.int64], order: NDArray[np.int64]) -> Members:
    """Return the objects with their samples in another order."""
    counts = np.diff(firsts)[order]
    ends = np.cumsum(counts)
    numbers = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts) + np.repeat(firsts[:-1][order], counts)
    sample = np.repeat(np.arange(len(order), dtype=np.int64), counts)
    if (numbers == np.arange(len(numbers))).all():
        return replace(members, sample=sample)
    keys, key_ends = texts_at(members.keys, members.key_ends, numbers)
    tags, tag_ends = texts_at(members.tags, members.tag_ends, numbers)
    return Members(members.root, members.base, keys, key_ends, members.sizes[numbers], tags, tag_ends, sample)
