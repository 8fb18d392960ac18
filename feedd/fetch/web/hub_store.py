"""Datasets on the Hugging Face Hub: ``hf://datasets/OWNER/NAME[@REVISION]``.

A listing is of the commit that the revision names at that moment, and reads request the files of that commit. So a run
does not change if somebody pushes. The version of a file is its SHA-256, or the id of its blob in git. A push that does
not change the files of a dataset does not change its fingerprint either.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from feedd.errors import BadResponse, NotFound, ObjectChanged
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.web.hub_api import HubApi
from feedd.fetch.web.web_ranges import Asking
from feedd.fetch.web.web_store import WebStore
from feedd.values import ObjectChecksum, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.connection import Answer
    from feedd.fetch.web.hub_api import Entry
    from feedd.fetch.web.web_target import Target
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

_PAGE_COUNT: Final = 1000
_FRESH_S: Final = 30.0  # how old a folder's listing may be that a HEAD looks into
_COMMITS_MAX: Final = 16
_FOLDERS_MAX: Final = 64
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class HubStore(WebStore):
    """One dataset at one revision. Sends each request once."""

    def __init__(self, root: str, limits: SourceOptions) -> None:
        name, _, revision = root.removeprefix("hf://datasets/").partition("@")
        super().__init__(root, limits)
        self._revision = revision or "main"
        self._api = HubApi(name, root, limits, self._client.trust)
        self._commits: deque[str] = deque(maxlen=_COMMITS_MAX)  # newest first
        self._listed_s = float("-inf")
        self._folders: dict[str, list[Entry]] = {}  # of the newest commit
        self._lock = asyncio.Lock()

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages of the newest commit's files in byte order; see ``ObjectStore.list``."""
        folder = prefix[: prefix.rfind("/") + 1]
        commit = await self._pinned(0.0)
        # Only folders that match are listed whole: a name such as train-000.tar may have neighbours by the million.
        entries = await self._folder(commit, folder) if prefix != folder else []
        if prefix == folder:
            entries = await self._api.tree(commit, folder, recursive=True)
        matching = [entry for entry in entries if entry.path.startswith(prefix)]
        exact = [entry for entry in matching if entry.path == prefix and entry.type == "file"]
        if exact and prefix > start_after:
            yield _refs(self._root, exact)  # whoever names one file reads no further
        files = [entry for entry in matching if entry.type == "file" and entry.path != prefix]
        if prefix != folder:
            for inner in matching:
                if inner.type == "directory":
                    found = await self._api.tree(commit, f"{inner.path}/", recursive=True)
                    if not found:  # git has no empty folders
                        message = f"expected files in {inner.path}/, which the listing names, got none"
                        raise BadResponse(message, object=f"{self._root}/{prefix}", stage="source")
                    files += [entry for entry in found if entry.type == "file"]
        refs = sorted((ref for ref in _refs(self._root, files) if ref.key > start_after), key=lambda ref: ref.key)
        for at in range(0, len(refs), _PAGE_COUNT):
            yield refs[at : at + _PAGE_COUNT]

    async def head(self, key: str) -> ObjectRef:
        """Return the version in the newest commit, from a listing of its folder that may be 30 s old."""
        commit = await self._pinned(_FRESH_S)
        for entry in await self._folder(commit, key[: key.rfind("/") + 1]):
            if entry.path == key and entry.type == "file":
                return _refs(self._root, [entry])[0]
        url = f"{self._root}/{key}"
        hint = f"see the files at {self._api.page}/tree/{self._revision}"
        raise NotFound("the object does not exist", object=url, hint=hint, stage="source")

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Return the SHA-256 that is a large file's version; None for files in git."""
        return ObjectChecksum("sha256", bytes.fromhex(ref.etag)) if _SHA256.fullmatch(ref.etag) else None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range of the file as it was listed; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        if not self._commits:
            await self._pinned(_FRESH_S)
        commits = list(self._commits)
        for commit in commits:
            asking = self._asking(commit, ref)
            try:
                await self._ranges.read(asking, ref, span, sink, progress or ReadProgress())
            except (NotFound, ObjectChanged):
                if commit == commits[-1]:
                    raise
            else:
                return

    async def close(self) -> None:
        """Close all connections; idempotent."""
        try:
            await self._api.close()
        finally:
            await super().close()

    def _asking(self, commit: str, ref: ObjectRef) -> Asking:
        """Return how a file of a commit is requested.

        The Hub states the file's version when it redirects, or with the bytes that it sends itself. The host that it
        redirects to states versions of its own.
        """
        start = self._api.file_target(commit, ref.key)
        stated: list[str] = []

        def hop(answer: Answer, target: Target) -> None:
            version = _version_of(answer)
            if target.origin != start.origin or not version:
                return
            if version != ref.etag:
                message = f"expected version {ref.etag}, got {version}"
                raise ObjectChanged(message, object=ref.url, hint=CHANGED_HINT, stage="source")
            stated.append(version)

        return Asking(
            start=start,
            headers={},
            version=lambda answer: ref.etag if stated else _version_of(answer),
            hop=hop,
            secrets=self._api.secrets,
            refused=lambda status, headers: self._api.refused(status, headers, ref.url, ref.etag),
            moves=True,
        )

    async def _pinned(self, fresh_s: float) -> str:
        """Return the commit of the revision, as known for at most ``fresh_s``; remember it for reads."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._commits and now_s - self._listed_s < fresh_s:
                return self._commits[0]
            revision = unquote(self._revision)
            commit = revision
            if not self._commits or not _COMMIT.fullmatch(revision):
                commit = await self._api.commit(self._revision)
            if commit in self._commits:
                self._commits.remove(commit)
            self._commits.appendleft(commit)
            self._listed_s = now_s
            self._folders.clear()
            return commit

    async def _folder(self, commit: str, folder: str) -> Sequence[Entry]:
        """Return what lies directly in a folder."""
        async with self._lock:
            found = self._folders.get(folder) if commit == self._commits[0] else None
            if found is None:
                found = await self._api.tree(commit, folder, recursive=False)
                if len(self._folders) >= _FOLDERS_MAX:
                    self._folders.clear()
                self._folders[folder] = found
            return found


def _refs(root: str, entries: Sequence[Entry]) -> list[ObjectRef]:
    return [ObjectRef(root, entry.path, entry.content_bytes, entry.content_id) for entry in entries]


def _version_of(answer: Answer) -> str:
    """Return the version that the Hub states: of a file elsewhere, that of the file."""
    header = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
    return header.removeprefix("W/").strip('"')
