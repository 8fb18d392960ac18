"""Thin PyTorch client of feedd: decoded batches, leased from this node's daemon.

>>> from feedd_client import DeviceLoader, FeedDataset, Normalize
"""

from __future__ import annotations

import gc
import os

# Set before grpc is imported, because grpc reads these variables only once. Trainers fork (DataLoader workers,
# subprocess launchers), and gRPC's own log lines repeat feedd's errors.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# A collection in the middle of the import walks all objects of torch: two thirds of the import's time.
_collects = gc.isenabled()
gc.disable()
try:
    from feedd_client._version import __version__
    from feedd_client.casts import Cast, ToChannelsLast
    from feedd_client.dataset import FeedDataset
    from feedd_client.device import DeviceLoader
    from feedd_client.errors import (
        AccessDenied,
        BadConfigError,
        BadOptionError,
        BadRecipeError,
        BadRequestError,
        BadSampleError,
        BadShardError,
        BatchesHeldError,
        CacheError,
        DaemonError,
        DaemonStartError,
        DaemonUnreachable,
        DaemonVersionError,
        DataError,
        DatasetChanged,
        DatasetNotFound,
        Draining,
        FeedError,
        ProtocolError,
        RanksDisagree,
        ResourceError,
        StateError,
        StoreError,
        TopologyError,
        UnsupportedError,
    )
    from feedd_client.geometry import (
        CenterCrop,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        Resize,
    )
    from feedd_client.mixing import CutMix, MixUp
    from feedd_client.normalize import Normalize
    from feedd_client.topology import Topology
    from feedd_client.values import Batch, Ragged, Shuffle, Source
finally:
    if _collects:
        gc.enable()

__all__ = [
    "AccessDenied",
    "BadConfigError",
    "BadOptionError",
    "BadRecipeError",
    "BadRequestError",
    "BadSampleError",
    "BadShardError",
    "Batch",
    "BatchesHeldError",
    "CacheError",
    "Cast",
    "CenterCrop",
    "CutMix",
    "DaemonError",
    "DaemonStartError",
    "DaemonUnreachable",
    "DaemonVersionError",
    "DataError",
    "DatasetChanged",
    "DatasetNotFound",
    "DeviceLoader",
    "Draining",
    "FeedDataset",
    "FeedError",
    "MixUp",
    "Normalize",
    "ProtocolError",
    "Ragged",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "RanksDisagree",
    "Resize",
    "ResourceError",
    "Shuffle",
    "Source",
    "StateError",
    "StoreError",
    "ToChannelsLast",
    "Topology",
    "TopologyError",
    "UnsupportedError",
    "__version__",
]
