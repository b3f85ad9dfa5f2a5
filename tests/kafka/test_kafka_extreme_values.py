"""Requests with values that no client sends: each is answered or closes the connection, and the
broker never fails over one.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from message_values import NAMES, bodies
from raw_kafka import RawKafka

from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.requests import table
from pybroker.kafka.requests.table import ROWS
from pybroker.testing import RunningBroker, broker

WAIT_S = 0.5  # some requests wait for others, or for messages
METADATA = 3


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, kafka_group_initial_rebalance_delay_ms=0) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            raw.ask(METADATA, 4, {"topics": [{"name": name} for name in NAMES]})
        yield started


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged with a traceback."""
    return [caplog.handler.format(record) for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("key", ROWS, ids=lambda key: ROWS[key].name)
@given(data=st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_is_answered_or_refused(
    running: RunningBroker, caplog: pytest.LogCaptureFixture, key: int, data: st.DataObject
) -> None:
    row = ROWS[key]
    version = data.draw(st.integers(row.first, row.last))
    body = data.draw(bodies(message_kinds()[key].request, version))
    with RawKafka(running.kafka_bootstrap) as raw:
        raw.socket.settimeout(WAIT_S)
        with suppress(EOFError, ConnectionError, TimeoutError):
            raw.ask(key, version, body)
    assert not failures(caplog)


@pytest.mark.parametrize("key", ROWS, ids=lambda key: ROWS[key].name)
@given(data=st.data())
@settings(max_examples=50)
def test_bytes_are_a_request_or_malformed(key: int, data: st.DataObject) -> None:
    row = ROWS[key]
    version = data.draw(st.integers(row.first, row.last))
    with suppress(Malformed):
        table.codec(key)[0](key, version, data.draw(st.binary(max_size=100)), 0)


def test_a_handler_that_fails_would_be_noticed(
    running: RunningBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pybroker.kafka.connection.handler", lambda key: fail)
    assert table.handler(METADATA) is not fail
    with caplog.at_level(logging.INFO), RawKafka(running.kafka_bootstrap) as raw:
        raw.send(METADATA, 4, {"topics": []})
        assert raw.is_closed()
    (failure,) = failures(caplog)
    assert "ZeroDivisionError" in failure
