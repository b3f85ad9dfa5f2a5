"""/metrics in the format that the scraper prefers: Prometheus' text, or OpenMetrics."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from scraped import busy_broker, scrape

import pybroker.testing
from pybroker.testing import RunningBroker

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture(scope="module")
def http_broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, metrics_cache_ms=600_000) as broker:
        yield broker


def get(broker: RunningBroker, accept: str) -> httpx.Response:
    return httpx.get(f"{broker.admin_url}/metrics", headers={"Accept": accept})


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("APPLICATION/OpenMetrics-Text ; Q=0.5 , text/plain ; q=0.5", True),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0,text/plain;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("application/openmetrics-text;q=nan", False),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        (",;=,;q", False),
        ("", False),
    ],
)
def test_the_accept_header_chooses_the_format(
    http_broker: RunningBroker, accept: str, is_openmetrics: bool
) -> None:
    answer = get(http_broker, accept)
    assert answer.status_code == 200
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["content-type"].startswith("application/op") is is_openmetrics
    assert answer.text.endswith("\n# EOF\n") is is_openmetrics
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_openmetrics_has_the_samples_of_the_text_format(tmp_path: Path) -> None:
    with busy_broker(tmp_path) as broker:
        plain, openmetrics = scrape(broker), get(broker, PROMETHEUS_3).text
    families = {family.name: family for family in text_string_to_metric_families(openmetrics)}
    assert families["pulsar_in_messages"].type == "counter"
    assert families["pulsar_in_messages"].documentation.startswith("Messages published")
    assert families["pulsar_broker_lookup"].type == "summary"
    assert families["pybroker_fsync_seconds"].type == "histogram"
    names = {sample.name for family in families.values() for sample in family.samples}
    of_the_last_scrape = {"pybroker_metrics_render_seconds"}
    assert names - of_the_last_scrape == set(plain.samples) - of_the_last_scrape
