"""Small jobs to simulate, with round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedd.dataset.listing import Listing
from feedd.fetch.fetch_options import SourceOptions
from feedd.simulation.scenario import JobModel, NodeModel, Scenario, StoreModel
from feedd.values import ObjectRef

MIB = 1 << 20


def listing(shards: int = 16, samples: int = 32, size_bytes: int = MIB) -> Listing:
    """Equal shards of so many samples."""
    found = Listing.of([ObjectRef("s3://b", f"{number:04d}.tar", size_bytes, "e") for number in range(shards)], 0.0)
    found.add_counts(dict.fromkeys(range(shards), samples), {}, ())
    return found


def scenario(data: Listing | None = None, **changes: Any) -> Scenario:
    """A node with one rank; each request brings 1 MiB in a second, and nothing else takes time."""
    job = JobModel(1, 1, 1, 0.0, 32, batch_bytes=1, prefetch=4, shuffle=False)
    node = NodeModel(64 * MIB, cache_bytes=1 << 40, workers=1, decode_s=0.0, index_s=0.0, open_s=0.0)
    store = StoreModel(latency_s=0.0, connection_bytes_s=MIB, requests_s=0.0)
    parts: dict[str, Any] = {"job": job, "node": node, "store": store}
    for name, value in changes.items():
        owner = next(one for one, part in parts.items() if hasattr(part, name))
        parts[owner] = replace(parts[owner], **{name: value})
    view = (data or listing()).as_listed
    return Scenario(view, 1, fetch=SourceOptions(hedge_share=0.0), **parts)
