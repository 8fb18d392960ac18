"""The data of ``feedd plan``, listed as the daemon lists it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cli.plan_flags import field_texts
from feedd.cli.stoppable import run_async

if TYPE_CHECKING:
    from feedd.config import Config
    from feedd.dataset.listing import Listing
    from feedd.values import ObjectRef


def list_for_plan(urls: list[str], fields: str, config: Config) -> tuple[Listing, tuple[ObjectRef, ...]]:
    """Return the data as the daemon lists it, and the sidecars that tell its counts. Reads headers of large files only.

    Args:
        urls: URLs of the data.
        fields: the recipe as JSON, which decides the windows of token files; empty: there are none.
        config: access, and the size of spans.
    """
    # The SDK takes most of a second to import, and --help and most other commands do not need it.
    from feedd.catalog.dataset_lister import DatasetLister  # noqa: PLC0415 - see above
    from feedd.catalog.learned_counts import Learned  # noqa: PLC0415 - see above
    from feedd.catalog.sources import Sources  # noqa: PLC0415 - see above
    from feedd.catalog.token_windows import windows_of  # noqa: PLC0415 - see above
    from feedd.clock import SystemClock  # noqa: PLC0415 - see above
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - see above
    from feedd.recipe.recipe import parse_field  # noqa: PLC0415 - see above

    windows = windows_of([parse_field(name, text) for name, text in field_texts(fields)])

    async def resolve() -> tuple[Listing, tuple[ObjectRef, ...]]:
        clock = SystemClock()
        async with Sources(source_options(config), NullRecorder(), clock) as sources:
            lister = DatasetLister(sources, clock, Learned())
            found = await lister.list([urls], () if windows is None else (windows,), span_bytes=config.fetch.span_size)
            manifests = {ref.url for ref in found.frozen}
            return found, tuple([await sources.head(url) for url in found.counted_by if url not in manifests])

    return run_async(resolve())
