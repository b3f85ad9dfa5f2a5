"""The official Java client's jars, resolved from Maven Central before Spark starts.

Spark could fetch them itself (`spark.jars.packages`), but then each start asks the network and a
failure shows as a stack trace out of the JVM. Maven does it where it is installed, for it knows the
user's mirrors and caches; elsewhere Ivy does, which comes with PySpark and needs nothing but Java.
"""

import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pybroker.errors import MetadataError

_POM: Final = Path(__file__).with_name("java") / "pom.xml"
_COMPLETE: Final = "resolved-from.xml"
_COORDINATES: Final = ("groupId", "artifactId", "version")


def official_client_jars(directory: Path) -> list[Path]:
    """The jars, copied to `directory` once for each version of the pom. Raises MetadataError."""
    complete = directory / _COMPLETE
    if not complete.exists() or complete.read_text() != _POM.read_text():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        _resolve(directory.resolve())
        shutil.copy(_POM, complete)
    return sorted(directory.glob("*.jar"))


def _resolve(directory: Path) -> None:
    if maven := shutil.which("mvn"):
        command = [maven, "--batch-mode", "--quiet", "--file", str(_POM)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run([*command, f"-DoutputDirectory={directory}"])
    elif java := shutil.which("java"):
        _run([java, "-cp", str(_ivy_jar()), "org.apache.ivy.Main", *_ivy_options(directory)])
    else:
        raise MetadataError("Java 17 is not installed: `java` is nowhere on the PATH")


def _ivy_jar() -> Path:
    import pyspark

    return next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))


def _ivy_options(directory: Path) -> list[str]:
    dependency = ET.parse(_POM).find("{*}dependencies/{*}dependency")
    assert dependency is not None
    coordinates = [str(dependency.findtext(f"{{*}}{part}")) for part in _COORDINATES]
    jars = directory / "[artifact]-[revision](-[classifier]).[ext]"
    options = ["-warn", "-confs", "default", "-retrieve", str(jars)]
    return [*options, "-dependency", *coordinates]


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        output = result.stdout + result.stderr
        raise MetadataError(f"The official Java client of {_POM} was not resolved:\n{output}")
