"""Imported last by the process that tests fork from: what each of its children would do first is done here, once."""

from __future__ import annotations

import gc
import threading

from feedd.fetch.s3 import client
from feedd.workers import pool as worker_pool


async def _rehearsed() -> None:
    """Do nothing: this was done before the process was forked."""


vars(worker_pool)["_AHEAD_CONVERTERS"] = ()  # few tests read tables: idle workers import pyarrow for nobody
client.warm_step_by_step(threading.Event())
client._rehearse = _rehearsed
gc.collect()
gc.freeze()  # the collector of a child need not walk, and so copy, what all of them share
