"""A store: ``shelf://NAME/KEY`` is the file KEY in the folder NAME below the folder that ``SHELF_ROOT`` names."""

import asyncio
import os
from pathlib import Path

from feedd.errors import NotFound, ObjectChanged
from feedd.values import ObjectRef

PAGE = 1000
PIECE_BYTES = 4 << 20


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

    async def read_into(self, ref, span, sink, progress=None):
        """Write that range of that version of the object to ``sink``, which is as long as ``span``."""
        for at in range(0, span.size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, span.size_bytes - at)
            await sink.write(at, await asyncio.to_thread(self.read, ref, span.start + at, size))
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

    def read(self, ref, start, size):
        etag = self.ref(ref.key).etag
        if etag != ref.etag:
            raise ObjectChanged(f"expected etag {ref.etag}, got {etag}", object=ref.url, stage="source")
        with (self.folder / ref.key).open("rb") as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise ObjectChanged(f"expected {size} bytes, got {len(data)}", object=ref.url, stage="source")
        return data
