"""Folders that cannot be read as datasets: tables with deleted rows, and datasets of several splits. Pure.

A Delta, Iceberg, Hudi or Paimon table keeps deleted or replaced files until they are cleaned up. Reading all files of
the folder would train on rows that the table no longer has. An Energon dataset names in a file which shards are for
training, and which are for validation. The listing shows such a folder, so every node decides alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.catalog.ignored_objects import IgnoredKeys
    from feedd.values import ObjectRef

_DELETED: Final = "the folder also holds files that the table has deleted or replaced"
_EXPORT: Final = (
    "list the data files of one snapshot in a manifest (manifest+s3://...), or write the snapshot as plain Parquet to"
    " another folder"
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of folder.

    Attributes:
        name: name of the format, with its article.
        within: text that is in every key that shows this kind.
        marker: pattern of such a key after the folder.
        why: why the folder's files cannot be read directly.
        hint: what to do instead.
    """

    name: str
    within: str
    marker: re.Pattern[str]
    why: str = _DELETED
    hint: str = _EXPORT


_KINDS: Final = (
    _Kind(
        "a Delta table",
        "_delta_log/",
        re.compile(r"(?:^|/)_delta_log/(?:\d{20}\.|_last_checkpoint$)"),
        hint=f"{_EXPORT}; deltalake's DeltaTable(url).file_uris() names the files",
    ),
    _Kind(
        "an Iceberg table",
        ".metadata.json",
        re.compile(r"(?:^|/)metadata/[^/]+\.metadata\.json(?:\.gz)?$"),
        hint=f"{_EXPORT}; pyiceberg's table.scan().plan_files() names the files",
    ),
    _Kind("a Hudi table", ".hoodie/", re.compile(r"(?:^|/)\.hoodie/")),
    _Kind("a Paimon table", "snapshot/snapshot-", re.compile(r"(?:^|/)snapshot/snapshot-\d+$")),
    _Kind(
        "a Lance dataset",
        "_versions/",
        re.compile(r"(?:^|/)_versions/\d+\.manifest$"),
        why="feedd does not read Lance files, and the folder also holds files that the dataset has deleted",
        hint="write one version of the dataset as plain Parquet to another folder",
    ),
    _Kind(
        "an Energon dataset",
        ".nv-meta/split.yaml",
        re.compile(r"(?:^|/)\.nv-meta/split\.yaml$"),
        why="the folder holds the shards of all splits",
        hint="name the shards that split.yaml lists for the split, as {shard_000,shard_001}.tar below the folder,"
        " or in a manifest (manifest+s3://...)",
    ),
)


def refuse_root(page: Iterable[ObjectRef], prefix: str, ignored: IgnoredKeys) -> None:
    """Refuse listed objects that show a table, or splits, at or below a prefix.

    Args:
        page: objects below the prefix.
        prefix: prefix of the listing.
        ignored: recognises ignored folders; a table in one of them does not matter.

    Raises:
        Unsupported: names the format, why it is no plain dataset, and what to do.
    """
    for ref in page:
        for kind in _KINDS:
            if kind.within in ref.key:
                _refuse(kind, ref, prefix, ignored)


def _refuse(kind: _Kind, ref: ObjectRef, prefix: str, ignored: IgnoredKeys) -> None:
    start = len(prefix) - prefix.endswith("/")  # a prefix inside the metadata names a plain folder of files
    found = kind.marker.search(ref.key, start)
    if found is None:
        return
    folder = ref.key[: found.start()]
    if ignored.is_hidden(f"{folder}/data"):
        return
    raise Unsupported(
        f"expected plain files of samples, got {kind.name}: {kind.why}",
        object=ref.url.removesuffix(ref.key) + folder,
        hint=f"{kind.hint} ({kind.name} because of {ref.url})",
        stage="source",
    )
