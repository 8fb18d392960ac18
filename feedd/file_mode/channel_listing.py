"""The objects of a channel that a node reads in File mode, and the path of each in the channel's directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.access import FILE_ROOT
from feedd.catalog.manifest import MANIFEST_BYTES_MAX, head_all, names_in, parse_manifest
from feedd.catalog.urls import parse_url
from feedd.channels.channel import Compression, DataType, RecordWrapper
from feedd.channels.epoch_list import EpochList
from feedd.dataset.fingerprint import listing_digest
from feedd.errors import BadRequest, NotFound, Unsupported
from feedd.fetch.pages import closing_pages
from feedd.file_mode.file_paths import below_prefix, check_paths
from feedd.flow.pools import CPU, LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.manifest import Names
    from feedd.catalog.sources import Sources
    from feedd.catalog.urls import Location
    from feedd.channels.channel import Channel
    from feedd.values import ObjectRef

_HEADS_IN_FLIGHT = 64


async def files_of(sources: Sources, channel: Channel, node_count: int, node_rank: int) -> dict[str, ObjectRef]:
    """Return this node's objects of a channel by path, in the order in which the channel names them.

    An object that a manifest names twice is one file.

    Raises:
        BadRequest: the URL or manifest is malformed, or an object cannot be a file.
        Unsupported: File mode does not have what the channel says.
        NotFound: the channel has no objects.
        PermissionDenied, StoreUnavailable: the store's answer.
    """
    check_file_mode(channel)
    location = parse_url(channel.url)
    if location.manifest or location.format:
        raise BadRequest("expected a plain URL, got one with a + in its scheme", object=channel.url, stage="files")
    if channel.data_type is DataType.MANIFEST:
        refs, paths = await _in_manifest(sources, location)
    else:
        refs, paths = await _below(sources, location)
    return await CPU.run(_of_node, channel, refs, paths, node_count, node_rank)


def check_file_mode(channel: Channel) -> None:
    """Refuse a channel that SageMaker reads in Pipe mode only.

    Raises:
        Unsupported: names the setting.
    """
    settings = {
        "S3DataType": (channel.data_type, DataType.AUGMENTED),
        "CompressionType": (channel.compression, Compression.GZIP),
        "RecordWrapperType": (channel.record_wrapper, RecordWrapper.RECORDIO),
    }
    for name, (value, refused) in settings.items():
        if value is refused:
            raise Unsupported(
                f"expected a channel for File mode, got {name} {refused.value}, which is for Pipe mode",
                object=f"channel {channel.name}",
                hint="files keep the bytes and names of their objects: leave the setting out, or use feedd pipe",
                stage="files",
            )


def _of_node(
    channel: Channel, refs: Sequence[ObjectRef], paths: Sequence[str], node_count: int, node_rank: int
) -> dict[str, ObjectRef]:
    digest = listing_digest(refs) if channel.seed is not None else bytes(32)
    mine = EpochList.of(channel, len(refs), digest, node_count, node_rank).indices(0).tolist()
    wanted = {(refs[index], paths[index]): None for index in mine}  # an ordered set
    check_paths([ref for ref, _ in wanted], [path for _, path in wanted])
    return {path: ref for ref, path in wanted}


async def _below(sources: Sources, location: Location) -> tuple[list[ObjectRef], list[str]]:
    """List a prefix, as SageMaker does: by the text of the keys. A local path is a folder or a file."""
    if location.root == FILE_ROOT and await LOCAL_FILES.run(Path(location.key).is_dir):
        location = replace(location, key=location.key.rstrip("/") + "/")
    refs: list[ObjectRef] = []
    async with closing_pages(sources.store(location.root).list(location.key)) as pages:
        async for page in pages:
            refs += page
    if not refs:
        hint = "check bucket and prefix, or the path; a prefix is matched from the start of the key, letter by letter"
        raise NotFound("expected at least one object, got none", object=location.url, hint=hint, stage="files")
    return refs, [below_prefix(ref.key, location.key) for ref in refs]


async def _in_manifest(sources: Sources, location: Location) -> tuple[list[ObjectRef], list[str]]:
    """Return the objects of a manifest. The path of each is the text after the manifest's prefix."""
    ref = await sources.store(location.root).head(location.key)
    if ref.size_bytes > MANIFEST_BYTES_MAX:
        message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
        raise BadRequest(message, object=location.url, stage="files")

    def parse(data: memoryview) -> tuple[Names, str]:
        prefix, _ = next(parse_manifest(data, location.url))
        return names_in(data, location.url), parse_url(prefix).key

    names, prefix = await sources.texts.parse(ref, parse)
    refs = await head_all(names, lambda root, key: sources.store(root).head(key), _HEADS_IN_FLIGHT)
    return refs, [ref.key.removeprefix(prefix) for ref in refs]
