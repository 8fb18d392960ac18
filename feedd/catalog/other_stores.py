"""Opens the stores that are neither buckets of S3 nor local files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.errors import Unsupported
from feedd.recipe import plugins

if TYPE_CHECKING:
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.protocols import ObjectStore


def open_store(root: str, options: SourceOptions) -> ObjectStore:
    """Return the store of a root; connections open on first use.

    Raises:
        BadRequest: the kind of store is unknown.
        Unsupported: the store needs a library that is not installed.
    """
    scheme = root.partition("://")[0]
    if scheme in {"http", "https"}:
        from feedd.fetch.web.store import HttpStore  # noqa: PLC0415 - each store loads its own libraries only

        return HttpStore(root, options)
    if scheme == "hf":
        from feedd.fetch.web.hub import HubStore  # noqa: PLC0415 - see above

        return HubStore(root, options)
    if scheme in {"gs", "az", "abfs", "abfss"}:
        return _obstore(root, options)
    return plugins.store(root)


def _obstore(root: str, options: SourceOptions) -> ObjectStore:
    from feedd.fetch.obstore_store import ObstoreStore  # noqa: PLC0415 - see above

    try:
        return ObstoreStore(root, options)
    except ModuleNotFoundError as error:
        hint = "pip install 'feedd[obstore]' where the daemon runs"
        if root.startswith("gs://"):
            hint += ', or write s3:// with endpoint_url = "https://storage.googleapis.com" and an HMAC key'
        message = "expected the library obstore, which reads this kind of store, got none"
        raise Unsupported(message, object=root, hint=hint, stage="source") from error
