"""Generate both sides' stubs from feedd.proto; ``--check`` fails when a committed stub is not current."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {ROOT / "feedd" / "wire": "feedd.wire", ROOT / "client" / "feedd_client" / "_wire": "feedd_client._wire"}
NAMES = ("feedd_pb2.py", "feedd_pb2.pyi", "feedd_pb2_grpc.py")


def render(package: str) -> dict[str, str]:
    """Return the stub files for one package; the import of the message module is made absolute."""
    with tempfile.TemporaryDirectory() as out:
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                "feedd.proto",
            ]
        )
        if code != 0:
            raise SystemExit(code)
        texts = {name: (Path(out) / name).read_text(encoding="utf-8") for name in NAMES}
    plain = "import feedd_pb2 as feedd__pb2"
    assert plain in texts["feedd_pb2_grpc.py"]
    texts["feedd_pb2_grpc.py"] = texts["feedd_pb2_grpc.py"].replace(
        plain, f"from {package} import feedd_pb2 as feedd__pb2"
    )
    return texts


def stale() -> list[Path]:
    """List the committed stubs that differ from what feedd.proto gives now."""
    return [
        folder / name
        for folder, package in TARGETS.items()
        for name, text in render(package).items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write the stubs, or with ``--check`` only compare them."""
    if "--check" in sys.argv[1:]:
        old = stale()
        for path in old:
            print(f"not current: {path.relative_to(ROOT)}; run make proto")
        return 1 if old else 0
    for folder, package in TARGETS.items():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in render(package).items():
            (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
