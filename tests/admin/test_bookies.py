"""pulsar-admin's bookies commands on a broker with its own storage."""

from collections.abc import Iterator

import httpx
import pytest

import pybroker.testing
from pybroker.testing import RunningBroker

RACK = "/admin/v2/bookies/racks-info/127.0.0.1:3181"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.mark.parametrize(("path", "found"), [("all", {"bookies": []}), ("racks-info", {})])
def test_a_broker_without_bookies_lists_none(
    broker: RunningBroker, path: str, found: dict[str, object]
) -> None:
    answer = httpx.get(f"{broker.admin_url}/admin/v2/bookies/{path}")
    assert (answer.status_code, answer.json()) == (200, found)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_bookie_without_a_rack_is_not_found_in_apaches_words(
    broker: RunningBroker, method: str
) -> None:
    answer = httpx.request(method, broker.admin_url + RACK)
    reason = "Bookie address not found: 127.0.0.1:3181"
    assert (answer.status_code, answer.json()["reason"]) == (404, reason)


def test_a_rack_that_would_have_no_effect_is_refused_with_the_reason(
    broker: RunningBroker,
) -> None:
    answer = httpx.post(broker.admin_url + RACK, json={"rack": "/a", "hostname": "b"})
    assert answer.status_code == 501
    assert "not placed by racks" in answer.json()["reason"]
