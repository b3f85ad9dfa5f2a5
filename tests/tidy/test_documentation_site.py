"""`make docs` builds the site without a warning, and the reference covers the code."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case
from pybroker.process.cli import _parser

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built like in the Makefile."""
    target = tmp_path_factory.mktemp("site")
    (line,) = re.findall(r"-m (sphinx .*) docs build/docs", (ROOT / "Makefile").read_text())
    ended = subprocess.run(
        [sys.executable, "-m", *line.split(), "docs", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return target


def test_every_document_has_a_page_that_is_listed(site: Path) -> None:
    listed = set(re.findall(r'href="([\w/-]+)\.html"', (site / "index.html").read_text()))
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert documents <= listed
    inside = set(re.findall(r'href="([\w-]+)\.html"', (site / "internals/index.html").read_text()))
    assert {path.stem for path in (ROOT / "docs/internals").glob("*.md")} - {"index"} <= inside
    assert {"reference/client", "reference/aio", "reference/spark", "reference/testing"} <= listed


def test_the_reference_has_every_setting_and_command(site: Path) -> None:
    settings = (site / "reference/settings.html").read_text()
    assert not [f.name for f in fields(BrokerConfig) if camel_case(f.name) not in settings]
    commands = (site / "reference/commands.html").read_text()
    named = re.search(r"\n    (standalone .*?)\n\S", _parser().format_help() + "\n.", re.DOTALL)
    assert named is not None
    names = set(re.findall(r"^(?:    )?([a-z-]+)(?:  |$)", named[1], re.MULTILINE)) - {"client"}
    assert {"standalone", "doctor", "demo", "eos-check", "certificates", "produce"} <= names
    assert not [name for name in names if f"pybroker {name}" not in commands]
    assert "set-retention" in commands
    assert "/admin/v2/brokers/health" in (site / "reference/admin-routes.html").read_text()


def test_the_reference_has_every_public_name(site: Path) -> None:
    for module in ("pybroker.client", "pybroker.spark", "pybroker.testing"):
        page = (site / f"reference/{module.rpartition('.')[2]}.html").read_text()
        public = __import__(module, fromlist=["__all__"]).__all__
        assert not [name for name in public if f'id="{module}.{name}"' not in page]


def test_readers_can_search(site: Path) -> None:
    assert "searchindex.js" in {path.name for path in site.iterdir()}


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="https?://', page.read_text())
