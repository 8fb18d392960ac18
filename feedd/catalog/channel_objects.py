"""The objects of a SageMaker channel, as SageMaker lists them: nothing below the prefix is left out."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.access import FILE_ROOT
from feedd.catalog.manifest import MANIFEST_BYTES_MAX, head_all, names_in
from feedd.catalog.urls import likely_bucket, parse_url
from feedd.channels.augmented_lines import ManifestLines
from feedd.channels.channel import DataType
from feedd.channels.epoch_list import EpochList
from feedd.dataset.fingerprint import listing_digest
from feedd.dataset.ref_columns import RefColumns
from feedd.errors import BadRequest, NotFound
from feedd.fetch.pages import closing_pages
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.sources import Sources
    from feedd.catalog.urls import Location
    from feedd.channels.channel import Channel
    from feedd.values import ObjectRef

_MANY: Final = 1 << 16  # fewer objects take little memory as they are


@dataclass(frozen=True, slots=True)
class ChannelObjects:
    """What a channel holds.

    Attributes:
        channel: the channel.
        refs: the objects, in the order of the listing or manifest; of an augmented manifest, only the manifest.
        lines: the lines of an augmented manifest; None: the channel has another data type.
        digest: digest of the list; all nodes must have the same.
    """

    channel: Channel
    refs: Sequence[ObjectRef]
    lines: ManifestLines | None
    digest: bytes

    @property
    def count(self) -> int:
        """Length of the list that is shuffled, and dealt out to nodes."""
        return len(self.refs) if self.lines is None else len(self.lines)

    def on_node(self, node_count: int, node_rank: int) -> EpochList:
        """Return what a node reads in each epoch."""
        return EpochList.of(self.channel, self.count, self.digest, node_count, node_rank)


async def list_channel(sources: Sources, channel: Channel, heads_in_flight: int) -> ChannelObjects:
    """Find the objects of a channel.

    Args:
        sources: the stores.
        channel: the channel, which has a URL.
        heads_in_flight: concurrent requests for the objects of a manifest.

    Raises:
        BadRequest: the URL or the manifest is malformed.
        NotFound: there are no objects, or a manifest names an object that does not exist.
        PermissionDenied, StoreUnavailable: the store's answer.
    """
    location = parse_url(channel.url)
    if channel.data_type is DataType.PREFIX:
        try:
            refs: Sequence[ObjectRef] = await _below(sources, location)
        except NotFound as error:
            error.object, error.hint = channel.url, error.hint or likely_bucket(location)
            raise
        lines = None
    else:
        manifest = await sources.store(location.root).head(location.key)
        if manifest.size_bytes > MANIFEST_BYTES_MAX:
            message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {manifest.size_bytes}"
            raise BadRequest(message, object=channel.url, stage="channels")
        if channel.data_type is DataType.AUGMENTED:
            lines = await sources.texts.parse(manifest, functools.partial(ManifestLines.of, url=channel.url))
            refs = [manifest]
        else:
            names = await sources.texts.parse(manifest, functools.partial(names_in, url=channel.url))
            refs = await head_all(names, lambda root, key: sources.store(root).head(key), heads_in_flight)
            lines = None
    refs = refs if len(refs) < _MANY else await CPU.run(RefColumns, refs)
    found = ChannelObjects(channel, refs, lines, await CPU.run(listing_digest, refs))
    if not found.count:
        hint = "the manifest has no lines" if lines is not None else "a prefix is matched letter by letter"
        raise NotFound(
            "expected at least one object, got none",
            object=channel.url,
            hint=likely_bucket(location) or hint,
            stage="channels",
        )
    return found


async def _below(sources: Sources, location: Location) -> list[ObjectRef]:
    """Return all objects whose key begins with the prefix; of a local path, the file, or all files below the folder."""
    store, prefix = sources.store(location.root), location.key
    if location.root == FILE_ROOT and not prefix.endswith("/"):
        try:
            return [await store.head(prefix)]
        except NotFound:
            prefix += "/"
    found: list[ObjectRef] = []
    async with closing_pages(store.list(prefix)) as pages:
        async for page in pages:
            found += page
    return found
