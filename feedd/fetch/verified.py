"""Verifies one object, while it is fetched, against its store's checksum."""

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
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef

_FETCHES_MAX = 3
_TOLD_MAX = 4  # senders named in messages

_log = structlog.get_logger(__name__)


class Arrivals:
    """The arrived parts of one object; passes them to the watch, and to the verification once there is one.

    Attributes:
        ref: the object.
        watch: observer of the fetch.
        sink: where the object's bytes go.
        many: its parts are separate objects.
    """

    many = False

    def __init__(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None) -> None:
        self.ref = ref
        self.watch = watch
        self.sink = sink
        self._verification: Verification | None = None
        self._answered: dict[str, None] = {}  # an ordered set

    async def ask(self, store: ObjectStore, whole: asyncio.Event, unverified: set[str]) -> None:
        """Get the checksum; parts that arrive before the answer are digested at the end.

        A refusal counts only once the object itself has arrived. A HEAD does not tell the reason, and if credentials
        expired, the parts' requests find others.

        Args:
            store: the object's store.
            whole: set when all parts have arrived.
            unverified: roots whose checksums may not be read; this root is added, and logged, in that case.
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
            _log.warning("objects are not verified: their checksums cannot be read", root=store.root, reason=str(error))
            return
        if expected is not None:
            self._verification = Verification(self.ref, expected)

    def joined(self, standing: FetchEntry) -> None:
        """Handle the scheduler entry of the fetch."""

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return the object and the byte range that belong to ``span``."""
        return self.ref, span

    def put_off(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether the caller of the fetch will request a refused span again later."""
        return False

    def lost(self, span: ByteRange, error: FeeddError) -> bool:  # noqa: ARG002 - packs ask for both
        """Whether a refused span may be replaced by zeros."""
        return False

    def arrived(self, span: ByteRange, part: RangeSink, answered_by: str) -> None:
        """Record a part and its sender."""
        if answered_by and len(self._answered) < _TOLD_MAX:
            self._answered[answered_by] = None
        if self._verification is not None:
            self._verification.arrived(span, part)
        if self.watch is not None:
            self.watch.arrived(span, part)

    async def damaged(self, recorder: Recorder, fetch_count: int) -> tuple[ByteRange, ...]:
        """Return the spans that must be fetched again, after ``fetch_count`` fetches; called when all have arrived.

        Raises:
            BadResponse: the object was fetched often enough.
        """
        if self._verification is None:
            return ()
        spans = await self._verification.finish(self.sink)
        if not spans:
            return ()
        recorder.count(FETCH_DAMAGED, sum(span.size_bytes for span in spans))
        said = f'{self._verification.describe()}, etag "{self.ref.etag}"'
        senders = "; ".join(self._answered) or "unknown"
        self._answered.clear()  # the next senders may be the wrong ones then
        if fetch_count >= _FETCHES_MAX:
            raise BadResponse(
                f"{said}, in {fetch_count} fetches, the last from {senders}",
                object=self.ref.url,
                hint='the object, its checksum or the network is damaged; fetch.verify = "length" skips the check',
                stage="source",
            )
        _log.warning(
            "an object does not match its checksum: fetching it again",
            object=self.ref.url,
            said=said,
            answered_by=senders,
        )
        return spans
