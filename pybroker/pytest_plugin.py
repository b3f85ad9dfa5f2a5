"""Fixtures for pytest, which finds them by itself where pybroker is installed: docs/testing.md.

`pulsar_broker` is a broker for one test, `pulsar_broker_shared` one for the whole session; both
serve the admin API. Settings are lines `key=value` of broker.conf: `pulsar_broker_settings` in
pytest's ini file, for both, and the marker `pulsar_broker(key=value)` on top, for the first.
Nothing is imported before a test asks for one; `-p no:pybroker` leaves them out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pybroker.testing import RunningBroker

SETTINGS: Final = "pulsar_broker_settings"
MARKER: Final = "pulsar_broker"


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "settings for the fixtures' brokers: key=value lines with broker.conf's keys"
    parser.addini(SETTINGS, what, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    line = f"{MARKER}(**settings): settings for this test's broker, with broker.conf's keys"
    config.addinivalue_line("markers", line)


@pytest.fixture
def pulsar_broker(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    lines: list[str] = []
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the test's own counts most
        lines += [f"{key}={_spelt(value)}" for key, value in marker.kwargs.items()]
    yield from _running(request.config, lines)


@pytest.fixture(scope="session")
def pulsar_broker_shared(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    yield from _running(request.config, [])


def _spelt(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _running(config: pytest.Config, lines: list[str]) -> "Iterator[RunningBroker]":
    from pybroker.base.config import BrokerConfig
    from pybroker.base.config_file import ConfigError, parse_config
    from pybroker.testing import broker

    settings = BrokerConfig()
    try:
        settings = parse_config("\n".join(config.getini(SETTINGS)), SETTINGS, settings)
        for line in lines:
            settings = parse_config(line, f"marker {MARKER}", settings)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    with broker(settings, http=True) as running:
        yield running
