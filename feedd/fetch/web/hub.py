"""Datasets on the Hugging Face Hub: ``hf://datasets/OWNER/NAME[@REVISION]``.

A listing is of the commit that the revision names at that moment, and reads request the files of that commit. So a run
does not change if somebody pushes. The version of a file is its SHA-256, or the id of its blob in git. A push that does
not change the files of a dataset does not change its fingerprint either.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import aiohttp
import msgspec
from yarl import URL

from feedd.access import climbs
from feedd.errors import BadResponse, NotFound, ObjectChanged, PermissionDenied, Throttled, Unsupported
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.proxy_rules import proxy_for
from feedd.fetch.s3.errors import FIRST_BYTES, who_answered
from feedd.fetch.web.client import REDIRECTS, REDIRECTS_MAX, broken, of_another, refusal
from feedd.fetch.web.store import Asking, WebStore
from feedd.fetch.web.target import Target, check_key, redirected, target_of
from feedd.flow.pools import CPU, LOCAL_FILES
from feedd.units import MIB
from feedd.values import ObjectChecksum, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from feedd.errors import FeeddError
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.connection import Answer
    from feedd.fetch.s3.tls import Trust
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

_T = TypeVar("_T")
_HUB: Final = "https://huggingface.co"
_ANSWER_BYTES_MAX: Final = 64 * MIB
_PAGES_MAX: Final = 10_000
_TOKEN_NAMES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_PLACE_HINT: Final = "check HF_ENDPOINT, HTTPS_PROXY and NO_PROXY where the daemon runs, and the network's login page"
_LIMIT_HINT: Final = (
    "the Hub limits requests by account and address: set HF_TOKEN where the daemon runs, and pack small files"
)
_PAGE_COUNT: Final = 1000
_FRESH_S: Final = 30.0  # how old a folder's listing may be that a HEAD looks into
_COMMITS_MAX: Final = 16
_FOLDERS_MAX: Final = 64
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Lfs(msgspec.Struct, frozen=True):
    """Facts of a file that the Hub keeps outside of git.

    Attributes:
        oid: SHA-256 of its content, in hex.
        size: length of its content.
    """

    oid: str
    size: int


class Entry(msgspec.Struct, frozen=True):
    """A file or folder of a dataset.

    Attributes:
        type: ``file`` or ``directory``.
        path: path in the dataset.
        oid: id of the blob or tree in git.
        size: length; of large files, that of the pointer or the content.
        lfs: facts of a large file.
    """

    type: str
    path: str
    oid: str
    size: int = 0
    lfs: Lfs | None = None

    @property
    def content_id(self) -> str:
        """What identifies the file's content."""
        return self.oid if self.lfs is None else self.lfs.oid

    @property
    def content_bytes(self) -> int:
        """Length of the file."""
        return self.size if self.lfs is None else self.lfs.size


class _NoEntry(NotFound):
    """The commit has no such file or folder, as the Hub itself says."""


class _Revision(msgspec.Struct):
    sha: str


_TREE: Final = msgspec.json.Decoder(list[Entry])
_REVISION: Final = msgspec.json.Decoder(_Revision)


class HubApi:
    """One dataset on the Hub. Belongs to one event loop.

    Args:
        name: ``OWNER/NAME`` of the dataset.
        root: root URL of the dataset, for errors.
        limits: deadlines.
        trust: authorities that certificates are verified with.
    """

    def __init__(self, name: str, root: str, limits: SourceOptions, trust: Trust) -> None:
        self._name = name
        self._root = root
        self._limits = limits
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None
        self._token = ""
        self.endpoint = target_of((os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/"))

    @property
    def page(self) -> str:
        """Address of the dataset's page, for hints."""
        return f"{self.endpoint.url.rstrip('/')}/datasets/{self._name}"

    def file_target(self, commit: str, path: str) -> Target:
        """Return where the content of a file is requested.

        Raises:
            BadRequest: the path climbs out of its folder.
        """
        check_key(self._root, path)
        return target_of(f"{self.page}/resolve/{commit}/{quote(path, safe='/~')}")

    def secrets(self, target: Target) -> Mapping[str, str]:
        """Return the Hub's token for a request to the Hub itself; nothing for any other host."""
        if not self._token or target.origin != self.endpoint.origin or climbs(target.origin, target.path):
            return {}
        if target.scheme != "https" and target.host not in _LOOPBACK:
            return {}  # the token would cross the network without encryption
        return {"Authorization": f"Bearer {self._token}"}

    async def commit(self, revision: str) -> str:
        """Return the commit that a branch, tag or commit names; reads the token anew.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable, Throttled, BadResponse: as the Hub answered.
        """
        self._token = await LOCAL_FILES.run(hub_token)
        data, _ = await self._get(f"{self._api}/revision/{quote(revision, safe='%')}", self._root)
        return (await self._parsed(_REVISION, data, self._root)).sha

    async def tree(self, commit: str, folder: str, *, recursive: bool) -> list[Entry]:
        """Return the files and folders in a folder; the folder is empty or ends in a slash. A missing one is empty.

        Only the Hub's own word makes a folder a missing one: any other refusal would shorten the dataset.

        Raises:
            BadRequest: the folder's path climbs.
            BadConfig: another server than the Hub answered.
            NotFound, PermissionDenied, StoreUnavailable, Throttled, BadResponse: as the Hub answered.
        """
        check_key(self._root, folder)
        path = quote(folder.rstrip("/"), safe="/~")
        url = f"{self._api}/tree/{commit}" + (f"/{path}" if path else "")
        url += f"?recursive={'true' if recursive else 'false'}&expand=false&limit=1000"
        found: list[Entry] = []
        shown, asked = f"{self._root}/{folder}", set[str]()
        for _ in range(_PAGES_MAX):
            asked.add(url)
            try:
                data, url = await self._get(url, shown)
            except _NoEntry:
                if len(asked) == 1:
                    return []
                raise
            entries: list[Entry] = await self._parsed(_TREE, data, shown)
            if any(not one.path.startswith(folder) or one.content_bytes < 0 for one in entries):
                message = f"expected files below {folder!r} with their sizes, got others"
                raise BadResponse(message, object=shown, stage="source")
            found += entries
            if not url:
                if len({one.path for one in found}) != len(found):
                    raise BadResponse("expected each file once, got one twice", object=shown, stage="source")
                return found
            if url in asked:
                raise BadResponse("expected a new page, got one that was read before", object=shown, stage="source")
        message = f"expected a listing of at most {_PAGES_MAX} pages, got more"
        raise BadResponse(message, object=shown, stage="source")

    def refused(self, status: int, headers: Mapping[str, str], url: str, etag: str = "") -> FeeddError:
        """Return the error for a refusal, with the Hub's reason."""
        code, said = headers.get("x-error-code", ""), headers.get("x-error-message", "")
        where = {"object": url, "stage": "source"}
        reason = f"status {status} {code}".rstrip()
        foreign = None if code else of_another(status, headers, url, pages=False)
        if code == "GatedRepo":
            hint = f"accept its terms at {self.page}, with the account whose token the daemon has in HF_TOKEN"
            return PermissionDenied(f"the dataset is gated: {reason}", hint=hint, **where)
        if code == "RevisionNotFound":
            hint = f"see the branches and tags at {self.page}/refs"
            return NotFound(f"the dataset has no such revision: {reason}", hint=hint, **where)
        if code == "RepoNotFound" or (status == 401 and not self._token and foreign is None):
            hint = "check owner and name; for a private dataset, set HF_TOKEN where the daemon runs"
            return NotFound(f"there is no such dataset, or it is private: {reason}", hint=hint, **where)
        if status in {401, 403} and foreign is None:
            hint = f"check that the token in HF_TOKEN is valid and may read {self.page}"
            return PermissionDenied(f"the hub refused the token: {said or reason}", hint=hint, **where)
        found = foreign or refusal(status, headers, url, etag)
        if isinstance(found, Throttled):
            found.hint = _LIMIT_HINT
        elif isinstance(found, NotFound):
            found = (_NoEntry if code == "EntryNotFound" else NotFound)(f"the object does not exist: {reason}", **where)
            found.hint = f"see the files at {self.page}/tree/main"
        return found

    async def close(self) -> None:
        """Close all connections; idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def _api(self) -> str:
        return f"{self.endpoint.url.rstrip('/')}/api/datasets/{self._name}"

    async def _get(self, url: str, shown: str) -> tuple[bytes, str]:
        """Return the body of an answer, and the URL of the next page; empty: there is none."""
        try:
            async with asyncio.timeout(self._limits.listing_deadline_s):
                return await self._answer(url, shown)
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, shown, self.endpoint.origin) from error

    async def _answer(self, url: str, shown: str) -> tuple[bytes, str]:
        target = target_of(url)
        for _ in range(REDIRECTS_MAX + 1):
            found = await self._sent(target, shown)
            if not isinstance(found, Target):
                return found
            target = found
        message = f"expected at most {REDIRECTS_MAX} redirects, got more, the last to {target.origin}"
        raise BadResponse(message, object=shown, stage="source")

    async def _sent(self, target: Target, shown: str) -> tuple[bytes, str] | Target:
        """Return the body of an answer and the URL of the next page, or where a redirect leads."""
        headers = {"User-Agent": "feedd", "Accept": "application/json", **self.secrets(target)}
        session = self._session or await self._open()
        sending = _by_proxy(target, headers)
        async with session.get(URL(target.url, encoded=True), allow_redirects=False, **sending) as answer:
            names = {name.lower(): answer.headers[name] for name in answer.headers}
            if answer.status in REDIRECTS:
                return self._hop(target, names.get("location", ""), shown)
            if answer.status != 200:
                raise self.refused(answer.status, names, shown)
            data = bytearray()
            async for piece in answer.content.iter_any():
                data += piece
                if len(data) > _ANSWER_BYTES_MAX:
                    message = f"expected an answer of at most {_ANSWER_BYTES_MAX} bytes, got more"
                    raise BadResponse(message, object=shown, stage="source")
            if bytes(data[:64]).lstrip()[:1] not in {b"[", b"{"}:
                sender = who_answered(200, names, bytes(data[:FIRST_BYTES])).name if data else "an empty body"
                message = f"expected the hub's json, got {sender}"
                raise BadResponse(message, object=shown, hint=_PLACE_HINT, stage="source")
            following = answer.links.get("next")
            return bytes(data), "" if following is None else self._next(str(following["url"]), shown)

    def _hop(self, before: Target, location: str, shown: str) -> Target:
        """Return where a redirect of the API leads; a renamed dataset redirects within the Hub."""
        found = redirected(before, location, "", shown)
        if found.host != self.endpoint.host or (found.scheme == before.scheme and found.port != before.port):
            message = f"expected the hub's listing from {self.endpoint.origin}, got a redirect to {found.origin}"
            hint = f"if that is the Hub to use, set HF_ENDPOINT={found.origin} where the daemon runs"
            raise Unsupported(message, object=shown, hint=hint, stage="source")
        return found

    def _next(self, url: str, shown: str) -> str:
        if target_of(url).origin != self.endpoint.origin:
            message = f"expected the next page at {self.endpoint.origin}, got {target_of(url).origin}"
            raise Unsupported(message, object=shown, stage="source")
        return url

    async def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=await self._trust.context())
        timeout = aiohttp.ClientTimeout(
            sock_connect=self._limits.connect_timeout_s, sock_read=self._limits.read_timeout_s
        )
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=jar)
        return self._session

    async def _parsed(self, decoder: msgspec.json.Decoder[_T], data: bytes, shown: str) -> _T:
        try:
            return await CPU.run(decoder.decode, data)
        except msgspec.DecodeError as error:
            message = f"expected the hub's json, got {error}"
            raise BadResponse(message, object=shown, stage="source") from error


def _by_proxy(target: Target, headers: dict[str, str]) -> dict[str, Any]:
    """Return aiohttp's arguments for a request: by the proxy of the environment, or directly.

    aiohttp's ``trust_env`` would name the proxy too, but it also sends passwords of ``~/.netrc`` to servers. The
    proxy's password goes into a header, because errors of aiohttp show URLs.
    """
    proxy = proxy_for(target.origin)
    if proxy is None:
        return {"headers": headers}
    login = {"Proxy-Authorization": proxy.login} if proxy.login else {}
    if target.scheme == "https":  # the proxy sees the head of CONNECT only
        return {"headers": headers, "proxy": proxy.url, "proxy_headers": login}
    return {"headers": headers | login, "proxy": proxy.url}


def hub_token() -> str:
    """Return the token that the Hub's own tools would use; empty: there is none. Reads a file."""
    for name in _TOKEN_NAMES:
        if os.environ.get(name):
            return os.environ[name].strip()
    home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118 - the parts may hold variables
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")
    try:
        return path.expanduser().read_text().strip()
    except (OSError, RuntimeError, UnicodeDecodeError):
        return ""


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
