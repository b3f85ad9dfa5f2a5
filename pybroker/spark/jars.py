"""The official Java client's jars, resolved from Maven Central before Spark starts.

Spark could fetch them itself (`spark.jars.packages`), but then each start needs the network and a
failure appears as a JVM stack trace. Maven does it if installed, because it knows the user's
mirrors and caches; otherwise Ivy does, which comes with PySpark and needs only Java.
"""

import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pybroker.base.errors import MetadataError

_POM: Final = Path(__file__).with_name("java") / "pom.xml"
_COMPLETE: Final = "resolved-from.xml"
_COORDINATES: Final = ("groupId", "artifactId", "version")


def official_client_jars(directory: Path) -> list[Path]:
    """The official client's jars, in `directory`. Raises MetadataError."""
    return resolved_jars(_POM, directory)


def resolved_jars(pom: Path, directory: Path) -> list[Path]:
    """The pom's jars, copied to `directory` once per version of the pom. Raises MetadataError."""
    complete = directory / _COMPLETE
    if not complete.exists() or complete.read_text() != pom.read_text():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        _resolve(pom, directory.resolve())
        shutil.copy(pom, complete)
    return sorted(directory.glob("*.jar"))


def _resolve(pom: Path, directory: Path) -> None:
    if maven := shutil.which("mvn"):
        command = [maven, "--batch-mode", "--quiet", "--file", str(pom)]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run(pom, [*command, f"-DoutputDirectory={directory}"])
    elif java := shutil.which("java"):
        command = [java, "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
        for options in _ivy_options(pom, directory):
            _run(pom, [*command, *options])
    else:
        raise MetadataError("Java 17 is not installed: `java` is not on the PATH")


def _ivy_jar() -> Path:
    import pyspark

    return next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))


def _ivy_options(pom: Path, directory: Path) -> Iterator[list[str]]:
    """The arguments of one run of Ivy for each dependency: its command accepts only one."""
    jars = directory / "[artifact]-[revision](-[classifier]).[ext]"
    options = ["-warn", "-confs", "default", "-retrieve", str(jars)]
    for dependency in ET.parse(pom).findall("{*}dependencies/{*}dependency"):
        coordinates = [str(dependency.findtext(f"{{*}}{part}")) for part in _COORDINATES]
        yield [*options, "-dependency", *coordinates]


def _run(pom: Path, command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        output = result.stdout + result.stderr
        raise MetadataError(f"The jars of {pom} could not be resolved:\n{output}")
