"""A store: ``shelf://NAME/KEY`` is the file KEY in the folder NAME below the folder that ``SHELF_ROOT`` names."""

import asyncio
import os
from pathlib import Path

from feedd.errors import NotFound, ObjectChanged
from feedd.values import ObjectRef

PAGE = 1000


class ShelfStore:
    """One folder of a shelf. feedd adds retries, limits, metrics and the cache around it."""

    def __init__(self, root):
        self.root = root
        self.folder = Path(os.environ["SHELF_ROOT"]) / root.removeprefix("shelf://")

    def __repr__(self):
        return f"ShelfStore({self.root})"

    async def list(self, prefix, start_after=""):
        """Yield pages of the objects below ``prefix``, in UTF-8 byte order of their keys."""
        refs = await asyncio.to_thread(self.found, prefix, start_after)
        for at in range(0, len(refs), PAGE):
            yield refs[at : at + PAGE]

    async def head(self, key):
        """Return the current version of one object."""
        return await asyncio.to_thread(self.ref, key)

    async def checksum(self, ref):
        """Return what the store keeps to check a whole object against: nothing."""
        return

    async def read_into(self, ref, span, target, progress=None):
        """Fill ``target``, which is as long as ``span``, with that range of that version of the object."""
        reading = asyncio.ensure_future(asyncio.to_thread(self.read, ref, span, target))
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            await asyncio.wait([reading])  # until it ends, the thread writes into ``target``, which is only lent
            raise
        if progress is not None:
            progress.filled_bytes = span.size_bytes

    async def close(self):
        """Release connections: there are none."""

    def found(self, prefix, start_after):
        if not self.folder.is_dir():
            raise NotFound(f"expected a folder {self.folder}, got none", object=self.root, stage="source")
        names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return [self.ref(name) for name in names if name.startswith(prefix) and name > start_after]

    def ref(self, key):
        try:
            stat = (self.folder / key).stat()
        except OSError as error:
            message = f"expected an object, got {error.strerror}"
            raise NotFound(message, object=f"{self.root}/{key}", stage="source") from error
        return ObjectRef(self.root, key, stat.st_size, f"{stat.st_mtime_ns:x}-{stat.st_ino:x}")

    def read(self, ref, span, target):
        etag = self.ref(ref.key).etag
        if etag != ref.etag:
            raise ObjectChanged(f"expected etag {ref.etag}, got {etag}", object=ref.url, stage="source")
        with (self.folder / ref.key).open("rb") as file:
            file.seek(span.start)
            got = file.readinto(target)
        if got != span.size_bytes:
            raise ObjectChanged(f"expected {span.size_bytes} bytes, got {got}", object=ref.url, stage="source")
