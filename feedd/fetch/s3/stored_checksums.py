"""The checksums that S3 stores for whole objects.

A HEAD returns them. GETs cannot: S3 leaves the object's checksum out of an answer to a range. Google's S3 face states a
CRC32C in a header of its own.

ETags are not used, though the ETags of many small objects are MD5 sums. The ETag of an SSE-C, SSE-KMS, multipart or
directory-bucket object is no MD5 sum, and other stores choose theirs freely. No field of an answer tells the kind
reliably, and a wrong guess would condemn a good object for ever.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import structlog
from botocore.exceptions import ClientError

from feedd.errors import BadRequest, BadResponse, NotFound, ObjectChanged, PermissionDenied, StoreUnavailable
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.object_checksums import ALGORITHMS, digest_of
from feedd.fetch.s3.range_answer import plain_etag
from feedd.fetch.s3.region import is_google
from feedd.fetch.s3.sdk_errors import code_of
from feedd.fetch.s3.who_answered import Sender, who_answered
from feedd.values import ObjectChecksum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.fetch.s3.sdk_client import S3Clients
    from feedd.fetch.s3.sdk_errors import RequestContext
    from feedd.values import ObjectRef

_log = structlog.get_logger(__name__)

_FIELDS = {name: f"Checksum{name.upper()}" for name in ALGORITHMS}  # botocore's field names
_PARTS_PER_PAGE = 1000
_PARTS_MAX = 10_000
_GOOGLE_CRC = re.compile(r"\bcrc32c=([A-Za-z0-9+/=]+)")


class S3Checksums:
    """Gets checksums of one bucket: a HEAD per object, and for composite checksums the parts, a thousand at a time."""

    def __init__(self, clients: S3Clients, bucket: str, payer: Mapping[str, str], deadline_s: float) -> None:
        self._clients = clients
        self._bucket = bucket
        self._payer = payer
        self._deadline_s = deadline_s
        self._logged = False

    async def of(self, ref: ObjectRef, request: RequestContext) -> ObjectChecksum | None:
        """Return the object's checksum, or None if there is none or its parts are unknown.

        Raises:
            BadResponse: the store contradicts itself, or the digest is malformed.
            Whatever ``ObjectStore.checksum`` raises.
        """
        answer = await self._call("head_object", request, ref, ChecksumMode="ENABLED", IfMatch=f'"{ref.etag}"')
        _check_version(answer, ref, request)
        # A proxy that compresses leaves the length out. The ETag has just told the version.
        if int(answer.get("ContentLength", ref.size_bytes)) != ref.size_bytes:
            message = f"expected {ref.size_bytes} bytes, got an object of {answer['ContentLength']}"
            raise BadResponse(message, object=request.url, stage="source")
        for algorithm, name in _FIELDS.items():
            if answer.get(name):
                return await self._read(algorithm, str(answer[name]), str(answer.get("ChecksumType", "")), ref, request)
        google = _GOOGLE_CRC.search(answer["ResponseMetadata"]["HTTPHeaders"].get("x-goog-hash", ""))
        return None if google is None else ObjectChecksum("crc32c", _decode("crc32c", google[1], request))

    async def _read(
        self, algorithm: str, text: str, kind: str, ref: ObjectRef, request: RequestContext
    ) -> ObjectChecksum | None:
        encoded, _, count = text.partition("-")
        digest = _decode(algorithm, encoded, request)
        # A store that names no type predates other types of multipart uploads, whose ETags look like "...-3".
        untold = not kind and "-" in ref.etag and algorithm != "crc64nvme"
        if kind != "COMPOSITE" and not count and not untold:
            return ObjectChecksum(algorithm, digest)
        parts = await self._parts(algorithm, ref, request)
        sizes, digests = tuple(size for size, _ in parts), tuple(found for _, found in parts if found is not None)
        if sum(sizes) != ref.size_bytes or (count and count != str(len(parts))) or not parts:
            self._log_unknown_parts(ref, "the store does not list them")
            return None
        return ObjectChecksum(algorithm, digest, sizes, digests if len(digests) == len(sizes) else ())

    async def _parts(self, algorithm: str, ref: ObjectRef, request: RequestContext) -> list[tuple[int, bytes | None]]:
        """Return size and digest of each part; empty if the store does not list them, or lists what cannot be."""
        found: list[tuple[int, bytes | None]] = []
        marker = 0
        while True:
            try:
                page = await self._call(
                    "get_object_attributes",
                    request,
                    ref,
                    ObjectAttributes=["ETag", "ObjectParts"],
                    MaxParts=_PARTS_PER_PAGE,
                    PartNumberMarker=marker,
                )
                _check_version(page, ref, request)  # the request has no If-Match
            except (BadRequest, BadResponse, NotFound, PermissionDenied) as error:
                self._log_unknown_parts(ref, error.message)
                return []
            except StoreUnavailable as error:
                if not _is_unknown_request(error.__cause__):
                    raise
                self._log_unknown_parts(ref, error.message)
                return []
            listed = page.get("ObjectParts", {})
            parts = listed.get("Parts", [])
            for part in parts:
                text = part.get(_FIELDS[algorithm])
                found.append((int(part.get("Size", 0)), _decode(algorithm, text, request) if text else None))
            size_bytes = [0, *(size for size, _ in found)]
            before, marker = marker, int(listed.get("NextPartNumberMarker", marker + len(parts)))
            ends = not parts or not listed.get("IsTruncated")
            wrong = min(size_bytes) < 0 or sum(size_bytes) > ref.size_bytes or len(found) > _PARTS_MAX
            if wrong or (marker <= before and not ends):
                self._log_unknown_parts(ref, "the store lists parts that cannot be")
                return []
            if ends:
                return found

    async def _call(self, name: str, request: RequestContext, ref: ObjectRef, **arguments: object) -> Mapping[str, Any]:
        async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
            method = getattr(client, name)
            more = {**arguments, **self._payer}
            if is_google(client.meta.endpoint_url):
                more.pop("ChecksumMode", None)  # it states its checksum unasked, and refuses the signed header
            answer: Mapping[str, Any] = await method(Bucket=self._bucket, Key=ref.key, **more)
            return answer

        return await self._clients.call(ask, request, self._deadline_s)

    def _log_unknown_parts(self, ref: ObjectRef, reason: str) -> None:
        if not self._logged:
            self._logged = True
            hint = "grant s3:GetObjectAttributes to have such objects checked"
            _log.warning("parts of a composite checksum are unknown", object=ref.url, reason=reason, hint=hint)


def _is_unknown_request(cause: BaseException | None) -> bool:
    """Whether the store does not know the request for parts.

    It may refuse it, or answer with the object itself or with a page, which botocore takes for an error 500.
    """
    if not isinstance(cause, ClientError):
        return False
    headers = cause.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    other = "etag" in headers or who_answered(200, headers, b"").sender is Sender.PAGE
    return code_of(cause) == "NotImplemented" or (code_of(cause) == "500" and other)


def _check_version(answer: Mapping[str, Any], ref: ObjectRef, request: RequestContext) -> None:
    etag = plain_etag(str(answer.get("ETag", "")), request, answer["ResponseMetadata"]["HTTPHeaders"])
    if etag != ref.etag:
        message = f"expected etag {ref.etag}, got {etag}"
        raise ObjectChanged(message, object=request.url, hint=CHANGED_HINT, stage="source")


def _decode(algorithm: str, text: str, request: RequestContext) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != len(digest_of(algorithm, b"")):
        raise BadResponse(f"expected a {algorithm} in base64, got {text!r}", object=request.url, stage="source")
    return digest
