"""The official Java client's jars, wherever Java is installed."""

import shutil
from pathlib import Path

import pytest

from pybroker.base.errors import MetadataError
from pybroker.spark.jars import official_client_jars


def hide_maven(monkeypatch: pytest.MonkeyPatch, bin_directory: Path, *, java: bool) -> None:
    bin_directory.mkdir()
    if java:
        (bin_directory / "java").symlink_to(str(shutil.which("java")))
    monkeypatch.setenv("PATH", str(bin_directory))


@pytest.mark.java
def test_maven_need_not_be_installed(tmp_path, monkeypatch):
    hide_maven(monkeypatch, tmp_path / "bin", java=True)
    jars = official_client_jars(tmp_path / "jars")
    assert {"pulsar-client-4", "slf4j-api-2"} <= {jar.name.partition(".")[0] for jar in jars}


def test_who_has_no_java_is_told(tmp_path, monkeypatch):
    hide_maven(monkeypatch, tmp_path / "bin", java=False)
    with pytest.raises(MetadataError, match="Java 17 is not installed"):
        official_client_jars(tmp_path / "jars")
