"""Checks whether this machine can read a dataset: one finding with a hint per step. It changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from feedd.cli.machine_check import Finding, Verdict
from feedd.cli.stoppable import run_async
from feedd.errors import BadRequest, FeeddError, NotFound
from feedd.observe.logs import redact_text
from feedd.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from feedd.catalog.urls import Location
    from feedd.config import Config
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.protocols import ObjectStore
    from feedd.values import ObjectRef

_T = TypeVar("_T")
_LISTING_S = 20.0
_PAGE = 1000
_SPELLING = "compare the spelling with aws s3 ls; a prefix of a folder ends in a slash"
_READ_BYTES_MAX = MIB


@dataclass(slots=True)
class _Steps:
    """The findings so far. A failed step adds its finding, and steps that need its result are skipped.

    Attributes:
        findings: one per step.
        object_url: URL of the first object that an augmented manifest names, to be checked next; empty: there is none.
    """

    findings: list[Finding]
    object_url: str = ""

    def ok(self, question: str, detail: str) -> None:
        self.findings.append(Finding(question, Verdict.FINE, detail))

    def note(self, question: str, detail: str, hint: str) -> None:
        self.findings.append(Finding(question, Verdict.NOTE, detail, hint))

    def failed(self, question: str, error: FeeddError) -> None:
        self.findings.append(Finding(question, Verdict.FAILED, redact_text(error.message), error.hint))


def examine_url(config: Config, url: str) -> list[Finding]:
    """Return findings on credentials, address, listing, a ranged GET and checksums of a prefix or an object.

    Of an augmented manifest, the lines are read, and the first object that they name is checked too. Each request is
    sent once, because the daemon's retries would only delay the answer.

    Raises:
        BadRequest: the URL is malformed.
        Unsupported: the URL is valid but not supported.
    """
    # The SDK takes most of a second to import, which other commands do not need.
    from feedd.catalog.braces import expand, split  # noqa: PLC0415 - see above
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - see above
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above

    location = parse_url(expand(split(url)[0])[0])  # the first URL of a list
    options = replace(source_options(config), listing_deadline_s=_LISTING_S)
    steps = _Steps([])
    run_async(_examine(location, options, steps))
    return steps.findings


async def _examine(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - see examine_url

    await _examine_store(location, options, steps)
    if steps.object_url:
        first = replace(parse_url(steps.object_url), manifest=True)  # one object, as a manifest is: no listing
        await _examine_store(first, options, steps)


async def _examine_store(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.catalog.bucket_stores import is_s3  # noqa: PLC0415 - see examine_url

    if location.root == FILE_ROOT:
        await _local(location, steps)
    elif is_s3(location.root):
        await _bucket(location, options, steps)
    else:
        await _other(location, options, steps)


async def _other(location: Location, options: SourceOptions, steps: _Steps) -> None:
    """Check a web server, a dataset on the Hub, or a store of obstore or of a plug-in."""
    from feedd.catalog.other_stores import open_store  # noqa: PLC0415 - see examine_url

    try:
        store = open_store(location.root, options)
    except FeeddError as error:
        steps.failed("store", error)
        return
    try:
        await _read(store, location, steps)
    finally:
        await store.close()


async def _local(location: Location, steps: _Steps) -> None:
    from feedd.fetch.local_store import LocalStore  # noqa: PLC0415 - see examine_url

    store = LocalStore(1)
    try:
        await _read(store, location, steps)
    finally:
        await store.close()


async def _bucket(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.fetch.s3.client import BucketFacts  # noqa: PLC0415 - see examine_url
    from feedd.fetch.s3.store import DirectStore, S3Store  # noqa: PLC0415 - see examine_url

    facts = BucketFacts()
    if not (await _credentials(location, options, steps) and await _address(location, options, steps)):
        return
    kind = S3Store if options.transport == "aiobotocore" else DirectStore
    store = kind(location.bucket, options, facts)
    try:
        await _read(store, location, steps)
    finally:
        await store.close()
    if facts.region.name:
        hint = f'set region = "{facts.region.name}" under [s3."{location.bucket}"] to save a redirect at each start'
        steps.note("bucket region", f"the bucket is in {facts.region.name}, not in the configured region", hint)


async def _credentials(location: Location, options: SourceOptions, steps: _Steps) -> bool:
    """Report the provider of the credentials, never the credentials themselves."""
    from feedd.fetch.s3.credentials import find_credentials  # noqa: PLC0415 - see examine_url
    from feedd.flow.pools import LOCAL_FILES  # noqa: PLC0415 - see examine_url

    s3 = options.for_bucket(location.bucket)
    try:
        found = await LOCAL_FILES.run(find_credentials, s3)
    except FeeddError as error:
        steps.failed("credentials", error)
        return False
    role = f", and with them the role {s3.role_arn}" if s3.role_arn else ""
    steps.ok("credentials", f"found by {found}{role}")
    return True


async def _address(location: Location, options: SourceOptions, steps: _Steps) -> bool:
    """Report the endpoint and region of requests, as the SDK derives them from configuration and environment."""
    from feedd.fetch.s3.store import S3Store  # noqa: PLC0415 - see examine_url

    store = S3Store(location.bucket, options)  # without the bucket's facts: nothing is sent, so nothing is answered

    async def ask(client: object) -> tuple[str, str]:
        meta = client.meta  # type: ignore[attr-defined]  # botocore builds its clients at run time
        return str(meta.endpoint_url), str(meta.region_name or "")

    try:
        deadline_s = options.connect_timeout_s + options.read_timeout_s
        endpoint, region = await store.clients.call(ask, store.request_context("list", location.key), deadline_s)
    except FeeddError as error:
        steps.failed("endpoint and region", error)
        return False
    finally:
        await store.close()
    steps.ok("endpoint", redact_text(endpoint))
    steps.ok("region", region or "none: the endpoint needs none")
    return True


async def _read(store: ObjectStore, location: Location, steps: _Steps) -> None:
    """List the first page, read the first object's first bytes, and report its checksum."""
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see examine_url
    from feedd.values import ByteRange  # noqa: PLC0415 - see examine_url

    ref = await _first(store, location, steps)
    if ref is None:
        return
    size_bytes = min(ref.size_bytes, _READ_BYTES_MAX)
    sink = MemorySink(memoryview(bytearray(size_bytes)))
    is_local = location.root == FILE_ROOT
    question = "read" if is_local else "ranged GET"
    try:
        _, took_ms = await _timed(store.read_into(ref, ByteRange(0, size_bytes), sink))
    except FeeddError as error:
        steps.failed(question, error)
        return
    steps.ok(question, f"{format_size(size_bytes)} of {ref.url} in {took_ms:.0f} ms")
    if not is_local:
        await _checksum(store, ref, steps)
    if location.augmented:
        await _lines(store, ref, location, steps)


async def _lines(store: ObjectStore, ref: ObjectRef, location: Location, steps: _Steps) -> None:
    """Report the lines of an augmented manifest, and find the first object that they name."""
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.catalog.augmented_manifest import parse_lines  # noqa: PLC0415 - see examine_url
    from feedd.catalog.manifest import MANIFEST_BYTES_MAX  # noqa: PLC0415 - see examine_url
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see examine_url
    from feedd.values import ByteRange  # noqa: PLC0415 - see examine_url

    if ref.size_bytes > MANIFEST_BYTES_MAX:
        message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
        steps.failed("lines", BadRequest(message, object=location.url))
        return
    data = memoryview(bytearray(ref.size_bytes))
    try:
        await store.read_into(ref, ByteRange(0, ref.size_bytes), MemorySink(data))
        found = parse_lines(data, location.url)
    except FeeddError as error:
        steps.failed("lines", error)
        return
    attributes = ", ".join(one.name for one in (*found.lines.references, *found.lines.values))
    detail = f"{len(found.lines)} samples with {attributes}, {len(found.names)} objects"
    if found.bad_count:
        hint = "such lines are bad samples: see bad_samples="
        steps.note("lines", f"{detail}, and {found.bad_count} lines that are no JSON objects", hint)
    else:
        steps.ok("lines", detail)
    first = next(iter(found.names), None)
    if first is not None:
        steps.object_url = f"{first[0]}{'' if first[0] == FILE_ROOT else '/'}{first[1]}"


async def _checksum(store: ObjectStore, ref: ObjectRef, steps: _Steps) -> None:
    """Report the ETag and the checksum that the store has for the object."""
    from feedd.catalog.bucket_stores import is_s3  # noqa: PLC0415 - see examine_url

    parts = ref.etag.rpartition("-")[2]
    kind = f"an upload in {parts} parts" if "-" in ref.etag and parts.isdigit() else "one upload"
    steps.ok("ETag", f"{ref.etag}, of {kind}" if is_s3(ref.root) else ref.etag)
    try:
        kept = await store.checksum(ref)
    except FeeddError as error:
        steps.failed("checksum", error)
        return
    if kept is None:
        upload = "upload with a checksum (aws s3 cp --checksum-algorithm CRC64NVME), so that feedd can verify the bytes"
        hint = upload if is_s3(ref.root) else "feedd pack writes a manifest with the SHA-256 of each shard"
        steps.note("checksum", "the store has none: answers are checked by length and ETag only", hint)
    else:
        of = f"of {len(kept.part_sizes)} parts" if kept.part_sizes else "of the whole object"
        steps.ok("checksum", f"{kept.algorithm}, {of}")


async def _first(store: ObjectStore, location: Location, steps: _Steps) -> ObjectRef | None:
    """Return the first non-empty object of a listing's first page, or the object itself."""
    if location.manifest:
        return await _itself(store, location, steps)
    try:
        page, took_ms = await _timed(_page(store, location.key))
    except FeeddError as error:
        steps.failed("listing", error)
        return None if location.key.endswith("/") or not location.key else await _itself(store, location, steps)
    if not page:
        steps.failed("listing", NotFound(f"no object's URL begins with {location.url}", hint=_SPELLING))
        return None
    more = " or more" if len(page) >= _PAGE else ""
    steps.ok("listing", f"{len(page)}{more} objects on the first page, in {took_ms:.0f} ms")
    return next((ref for ref in page if ref.size_bytes), page[0])


async def _itself(store: ObjectStore, location: Location, steps: _Steps) -> ObjectRef | None:
    """Return the object that the URL names, because credentials without list permission may still read it."""
    try:
        ref, took_ms = await _timed(store.head(location.key))
    except FeeddError as error:
        steps.failed("HEAD", error)
        return None
    steps.ok("HEAD", f"{format_size(ref.size_bytes)} in {took_ms:.0f} ms")
    return ref


async def _page(store: ObjectStore, prefix: str) -> list[ObjectRef]:
    from feedd.fetch.pages import closing_pages  # noqa: PLC0415 - see examine_url

    async with closing_pages(store.list(prefix)) as pages:
        return await anext(aiter(pages), [])


async def _timed(work: Awaitable[_T]) -> tuple[_T, float]:
    begin_s = time.perf_counter()
    found = await work
    return found, (time.perf_counter() - begin_s) * 1e3
