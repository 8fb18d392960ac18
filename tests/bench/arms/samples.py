"""The pictures as their tar shards hold them, for the peers' writers."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def samples_of(shard: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (JPEG bytes, label) of one tar shard, in its order."""
    with tarfile.open(shard) as tar:
        picture = b""
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None, f"expected only files in {shard}, got {member.name}"
            content = file.read()
            if member.name.endswith(".jpg"):
                picture = content
            else:
                yield picture, int(content)


def shards_of(folder: str) -> list[Path]:
    """Tar shards of a folder, in order."""
    return sorted(Path(folder).glob("*.tar"))
