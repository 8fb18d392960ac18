"""Which objects among shards are not data but files that tools and people leave. Pure; a microsecond per object.

By Hadoop's and Spark's convention, an object is ignored if its name, or a folder's name, begins with a dot or an
underscore. A name with ``=`` is a partition's and is kept. Also ignored are files known by their names, checksums, and
empty objects without a known extension. Other unknown objects are left for their reader to refuse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from feedd.catalog.object_kinds import SHARD, is_known, kind_of, looks_like_data
from feedd.dataset.object_names import split_name
from feedd.notices import NoticeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import ObjectRef

_LEFT: Final = (
    # by file managers, and by tools that write checksums
    "thumbs.db desktop.ini sha256sums sha512sums sha1sums md5sums checksums.txt "
    # by LMDB, and nanoGPT
    "lock.mdb meta.pkl "
    # by TFDS, Hugging Face's libraries and others
    "dataset_info.json dataset_infos.json dataset_dict.json features.json state.json metadata.json schema.json "
    "config.json stats.json croissant.json manifest.json tokenizer.json tokenizer_config.json"
)
_NAMES: Final = frozenset(_LEFT.split())
_NOTES: Final = re.compile(
    r"(readme|licen[cs]e|notice|changelog|changes|copying|authors|contributing|citation|version)"
    r"(\.(md|rst|txt|html?|pdf|cff))?"
)
_ABOUT: Final = "md5 sha1 sha224 sha256 sha384 sha512 crc index lock asc sig success"
_ENDINGS: Final = frozenset(_ABOUT.split())
"""Extensions of files that describe another file; never data under any format name."""

_WRITTEN: Final = "md rst html htm pdf py ipynb sh yaml yml toml cff ini log"
_TEXTS: Final = frozenset(_WRITTEN.split())
"""Extensions of files that people write; data only if the user names a format."""

_OF_WORDS: Final = "labels classes class_names categories names synsets synset vocab merges words meta metadata info"
_LISTS: Final = frozenset(_OF_WORDS.split())
_ENDS: Final = (".labels.txt", "_stats.json", "._copying_", "_$folder$")
_CACHED: Final = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")  # written by ``datasets.map`` next to its data
_USUAL: Final = "tar tgz tfrecord tfrecords mds rec bin parquet jsonl gz zst csv tsv npy npz h5"
_SHARDS: Final = frozenset(_USUAL.split())
"""Extensions that are in none of the sets above."""

_BEGINS: Final = frozenset("._")


class IgnoredKeys:
    """Recognises the ignored objects of one listing.

    Args:
        prefix: common prefix of all keys; folders within it were named by the user and are never ignored.
        named: the user named a format, which then applies to every object without another reason against it.

    Attributes:
        judges_first: the first name below the prefix is a whole name; otherwise it begins within the prefix.
    """

    def __init__(self, prefix: str, *, named: bool = False) -> None:
        self._start = len(prefix)
        self.judges_first = prefix[-1:] in {"", "/"}
        self._named = named

    def is_ignored(self, key: str, size_bytes: int) -> bool:
        """Whether an object among shards is ignored."""
        return self.reason(key, size_bytes) is not None

    def reason(self, key: str, size_bytes: int) -> NoticeKind | None:
        """Return why an object among shards is ignored, or None if it is not."""
        if self.is_hidden(key):
            return NoticeKind.HIDDEN_SHARDS if size_bytes and looks_like_data(key) else NoticeKind.HIDDEN_FILES
        return NoticeKind.SIDE_FILES if self._is_side_file(key, size_bytes) else None

    def _is_side_file(self, key: str, size_bytes: int) -> bool:
        name = key[key.rfind("/") + 1 :].lower()
        extension = name[name.rfind(".") + 1 :]
        if extension in _SHARDS:  # most objects are
            return False
        if name in _NAMES or extension in _ENDINGS or name.endswith(_ENDS):
            return True
        if extension == "arrow":
            return _CACHED.fullmatch(name) is not None
        if not self._named and (extension in _TEXTS or (not size_bytes and not is_known(name))):
            return True
        return _NOTES.fullmatch(name) is not None

    def is_hidden(self, key: str) -> bool:
        """Whether a name below the prefix begins with a dot or an underscore."""
        inside = key[self._start :]
        if "/_" not in inside and "/." not in inside and not (self.judges_first and inside[:1] in _BEGINS):
            return False
        names = inside.split("/")
        return any(
            name[:1] in _BEGINS and (name[0] == "." or "=" not in name)
            for name in (names if self.judges_first else names[1:])
        )

    def without(self, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Return the shards among objects, or all objects if none seems to be a shard, because the user named them."""
        found = [ref for ref in refs if not self.is_ignored(ref.key, ref.size_bytes)]
        if not self._named:
            found = _without_lists(_without_tables(found))
        return found or list(refs)


def _without_tables(refs: list[ObjectRef]) -> list[ObjectRef]:
    """Leave out tables that describe the samples of a tar of the same name, as img2dataset writes them."""
    if not any(ref.key.endswith(".tar") for ref in refs) or not any(ref.key.endswith(".parquet") for ref in refs):
        return refs
    tars = {ref.key[:-4] for ref in refs if ref.key.endswith(".tar")}
    return [ref for ref in refs if not (ref.key.endswith(".parquet") and ref.key[:-8] in tars)]


def _without_lists(refs: list[ObjectRef]) -> list[ObjectRef]:
    """Leave out lists of classes and of words next to shards that are not text themselves."""
    lists = {ref for ref in refs if ref.key.endswith(".txt") and ref.key[ref.key.rfind("/") + 1 : -4] in _LISTS}
    if not lists or not any(kind_of(*split_name(ref.key)) == SHARD for ref in refs):
        return refs
    return [ref for ref in refs if ref not in lists]
