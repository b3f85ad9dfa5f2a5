"""Writes pybroker/wire/pulsar_api_pb2.py and .pyi from PulsarApi.proto (`make proto`).

protoc names its output after the proto file, which is not a Python module name. So the output is
moved to pulsar_api_pb2, and the module is given its real name (pickle needs it). `Schema.Type.None`
is removed from the stub: it is not a Python name, and mypy would refuse the whole file.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
WIRE = ROOT / "pybroker" / "wire"
MODULE = "pybroker.wire.pulsar_api_pb2"


def generate(into: Path) -> None:
    """Write both files into the folder `into`; raises if protoc refuses the proto file."""
    with tempfile.TemporaryDirectory() as raw:
        outcome = protoc.main(
            ["protoc", f"-I{ROOT}", f"--python_out={raw}", f"--pyi_out={raw}", "PulsarApi.proto"]
        )
        if outcome != 0:
            raise SystemExit(f"protoc refused {ROOT / 'PulsarApi.proto'}; see its message above")
        code = Path(raw, "PulsarApi_pb2.py").read_text()
        (into / "pulsar_api_pb2.py").write_text(code.replace("'PulsarApi_pb2'", f"'{MODULE}'"))
        stub = Path(raw, "PulsarApi_pb2.pyi").read_text().splitlines(keepends=True)
        valid = [line for line in stub if not line.lstrip().startswith("None:")]
        (into / "pulsar_api_pb2.pyi").write_text("".join(valid))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else WIRE)
