"""Pages of listings as S3 writes them, whole or with parts left out, and how the daemon takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from feedd.fetch.s3.listing import page_of, take

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from feedd.fetch.s3.listing import Page

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def listing_page(keys: Iterable[str], *, token: str = "", more: bool = False, size_bytes: int = 1) -> bytes:
    """Return a page with these keys.

    Args:
        keys: in the order of the page.
        token: continuation token; empty: it has none.
        more: whether it is truncated.
        size_bytes: size of each object.
    """
    rows = [
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;e{number}"
        f"&quot;</ETag><Size>{size_bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for number, key in enumerate(keys)
    ]
    following = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult{SPACE}><Name>bucket</Name><Prefix></Prefix>'
        f"<KeyCount>{len(rows)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
        f"{following}{''.join(rows)}</ListBucketResult>"
    ).encode()


def page_from(body: bytes, prefix: str = "", *, status: int = 200, headers: Mapping[str, str] | None = None) -> Page:
    """Return the page of an answer as the daemon takes it; raises what ``page_of`` raises."""
    answer = {"status_code": status, "headers": headers or {"content-type": "application/xml"}, "body": body}
    taken: dict[str, Any] = {}
    take(response_dict=answer, customized_response_dict=taken)
    return page_of(taken, prefix)
