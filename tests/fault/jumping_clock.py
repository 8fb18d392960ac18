"""``python -m tests.fault.jumping_clock URL FOLDER``: signed reads where the wall clock jumps at every look.

The clock is exchanged before anything of feedd is imported: whoever keeps a reference to it has the other one as well.
Prints whether the reads were exact, how often the client's signer was asked, and how long was slept.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

_JUMPS_S = itertools.count(0, 3600)
READS = 3


def exchange() -> None:
    """Let the wall clock of this process jump whenever it is asked."""
    true_s = time.time  # noqa: TID251 - the clock that is exchanged
    time.time = lambda: true_s() + next(_JUMPS_S)  # noqa: TID251 - see above


async def read(url: str, folder: Path) -> dict[str, Any]:
    """Read an object several times; return what came of it."""
    rigs: Any = importlib.import_module("tests.fault.s3_rig")
    certs: Any = importlib.import_module("tests.unit.serve.certs")
    signers: Any = importlib.import_module("aiobotocore.signers")
    sign, signed = signers.AioRequestSigner.sign, []

    async def counted(signer: Any, operation: str, *rest: Any, **more: Any) -> Any:
        signed.append(operation)
        return await sign(signer, operation, *rest, **more)

    signers.AioRequestSigner.sign = counted
    async with rigs.opened(url, certs.Authority(folder), "direct", rigs.SIGNED) as rig:
        exact = [await rig.fetch() == rigs.DATA for _ in range(READS)]
        return {"exact": exact, "signed_count": signed.count("GetObject"), "slept_s": rig.clock.now_s}


if __name__ == "__main__":
    exchange()
    importlib.import_module("feedd.observe.logs").configure_logging("text", "warning")  # stdout is for the answer
    print(json.dumps(asyncio.run(read(sys.argv[1], Path(sys.argv[2])))))
