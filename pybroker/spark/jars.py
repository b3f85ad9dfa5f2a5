"""The official Java client's jars, resolved by Maven before Spark starts.

Spark could fetch them itself (`spark.jars.packages`), but then each start asks the network and a
failure shows as a stack trace out of the JVM.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from pybroker.errors import MetadataError

_POM: Final = Path(__file__).with_name("java") / "pom.xml"
_COMPLETE: Final = "resolved-from.xml"


def official_client_jars(directory: Path) -> list[Path]:
    """The jars, copied to `directory` once for each version of the pom. Raises MetadataError."""
    complete = directory / _COMPLETE
    if not complete.exists() or complete.read_text() != _POM.read_text():
        _resolve(directory)
        shutil.copy(_POM, complete)
    return sorted(directory.glob("*.jar"))


def _resolve(directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MetadataError("The official Java client is resolved by Maven, which is not installed")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [maven, "--batch-mode", "--quiet", "--file", str(_POM)]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={directory.resolve()}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise MetadataError(f"Maven could not resolve {_POM}:\n{result.stdout}{result.stderr}")
