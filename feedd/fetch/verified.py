"""One object on its way in, held against the checksum its store keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from feedd.errors import BadRequest, BadResponse, PermissionDenied, Unsupported
from feedd.fetch.object_checksums import Verification
from feedd.metrics import FETCH_DAMAGED

if TYPE_CHECKING:
    import asyncio

    from feedd.errors import FeeddError
    from feedd.fetch.scheduler import FetchEntry
    from feedd.protocols import FetchWatch, ObjectStore, Recorder
    from feedd.values import ByteRange, ObjectRef

_FETCHES_MAX = 3
_TOLD_MAX = 4  # who answered, in messages

_log = structlog.get_logger(__name__)


class Arrivals:
    """What has come of one object: tells the watch, and the verification as soon as there is one.

    Attributes:
        ref: the object.
        watch: whoever the fetch is for.
        target: the object's bytes.
        many: its parts are objects of their own.
    """

    many = False

    def __init__(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None) -> None:
        self.ref = ref
        self.watch = watch
        self.target = target
        self._verification: Verification | None = None
        self._answered: dict[str, None] = {}  # an ordered set

    async def ask(self, store: ObjectStore, whole: asyncio.Event, unverified: set[str]) -> None:
        """Ask for the checksum; parts that come before the answer are digested in the end.

        A refusal counts only when the object itself came: a HEAD does not say why it is refused, and where credentials
        ran out the parts have others found.

        Args:
            store: where the object is.
            whole: set when all parts are there.
            unverified: roots whose checksums we may not see; this one is added, and logged, where that is so.
        """
        try:
            try:
                expected = await store.checksum(self.ref)
            except (BadRequest, PermissionDenied):
                if store.root in unverified:
                    return
                await whole.wait()
                expected = await store.checksum(self.ref)
        except (PermissionDenied, Unsupported) as error:
            unverified.add(store.root)
            _log.warning("objects are not verified", root=store.root, reason=str(error))
            return
        if expected is not None:
            self._verification = Verification(self.ref, expected)

    def joined(self, standing: FetchEntry) -> None:
        """Take note of who stands in the line for it."""

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return which bytes of which object belong there."""
        return self.ref, span

    def put_off(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether what the store refuses is asked for again later, by whoever began the fetch."""
        return False

    def lost(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether what the store refuses can be done without; then zeros arrive in its place."""
        return False

    def arrived(self, span: ByteRange, piece: memoryview, answered_by: str) -> None:
        """Take note of a part, and of who sent it."""
        if answered_by and len(self._answered) < _TOLD_MAX:
            self._answered[answered_by] = None
        if self._verification is not None:
            self._verification.arrived(span, piece)
        if self.watch is not None:
            self.watch.arrived(span, piece)

    async def damaged(self, recorder: Recorder, fetch_count: int) -> tuple[ByteRange, ...]:
        """Return what must be fetched again, having been fetched so often; called when all has arrived.

        Raises:
            BadResponse: it was fetched often enough.
        """
        if self._verification is None:
            return ()
        spans = await self._verification.finish(self.target)
        if not spans:
            return ()
        recorder.count(FETCH_DAMAGED, sum(span.size_bytes for span in spans))
        said = f'{self._verification.describe()}, etag "{self.ref.etag}"'
        senders = "; ".join(self._answered) or "unknown"
        self._answered.clear()  # whoever answers next is who may be wrong next
        if fetch_count >= _FETCHES_MAX:
            raise BadResponse(
                f"{said}, in {fetch_count} fetches, the last answered by {senders}",
                object=self.ref.url,
                hint='the object, its checksum or the way here is damaged; fetch.verify = "length" takes it as it is',
                stage="source",
            )
        _log.warning("an object is not what its checksum says", object=self.ref.url, said=said, answered_by=senders)
        return spans
