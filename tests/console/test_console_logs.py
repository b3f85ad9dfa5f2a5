"""The log of a broker in a separate process: its last lines, and its level."""

from pathlib import Path

import httpx
import pytest
from browsing import Browser, words

from pybroker.testing.broker_process import BrokerProcess


@pytest.mark.slow
def test_the_log_is_shown_and_its_level_changed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        browser = Browser(broker.admin_url)
        log = "/admin/v2/brokers/log"
        browser.do("/console/tenants", "/console/tenants", name="<b>acme</b>")
        page = browser.page("/console/logs?search=acme")
        assert "<b>acme" not in page and "%3Cb%3Eacme" in words(page)
        assert "The log level is now warning" in words(
            browser.do("/console/logs/level", "/console/logs", level="warning")
        )
        assert "is not a level" in words(
            browser.do("/console/logs/level", "/console/logs", level="loud")
        )
        browser.do("/console/logs/configured-level", "/console/logs")
        (last,) = httpx.get(f"{broker.admin_url}{log}?lines=1").json()["lines"]
        assert "pybroker.audit" in last and "logLevel" in last
