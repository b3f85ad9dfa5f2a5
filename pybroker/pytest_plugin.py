"""Fixtures that pytest finds automatically if pybroker is installed: docs/testing.md.

There is a broker for each scope: `pulsar_broker` (function), `pulsar_broker_module` and
`pulsar_broker_shared` (session). All serve the admin API. `pulsar_namespace`, `pulsar_topic`,
`pulsar_client`, `pulsar_clock` and `pulsar_faults` belong to the broker that the test uses; if it
uses none, to a `pulsar_broker`. Settings are lines `key=value` of broker.conf.
`pulsar_broker_settings` in pytest's ini file applies to all brokers. The marker
`pulsar_broker(key=value)` overrides it: on a test for the test's broker, on a module for the
module's broker.

A failing test shows the steps of its brokers: see pybroker.testing.story.

Nothing is imported before a test requests a fixture; `-p no:pybroker` disables the fixtures. With
pytest-xdist, each worker has its own brokers.
"""

import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pybroker.client import Client
    from pybroker.faults import Faults
    from pybroker.testing import RunningBroker, VirtualClock

SETTINGS: Final = "pulsar_broker_settings"
MARKER: Final = "pulsar_broker"
# From the narrowest to the widest scope.
BROKERS: Final = ("pulsar_broker", "pulsar_broker_module", "pulsar_broker_shared")
_STORIES: Final = pytest.StashKey[dict[Any, str]]()  # of running brokers, and their fixtures
_ENDED: Final = pytest.StashKey[dict[Any, str]]()  # of brokers that ended with the test


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "settings for the fixtures' brokers: key=value lines with broker.conf's keys"
    parser.addini(SETTINGS, what, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    line = f"{MARKER}(**settings): settings for this test's broker, with broker.conf's keys"
    config.addinivalue_line("markers", line)


# -- the story of a test


def _stories(config: pytest.Config) -> dict[Any, str]:
    return config.stash.setdefault(_STORIES, {})


def _ended(config: pytest.Config) -> dict[Any, str]:
    return config.stash.setdefault(_ENDED, {})


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for story in _stories(item.config):
        story.begin()
    _ended(item.config).clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for story, fixture in (_stories(item.config) | _ended(item.config)).items():
            if text := story.text():
                report.sections.append((f"what {fixture} did", text))
    return report


# -- brokers


@pytest.fixture
def pulsar_broker(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    """A broker for one test."""
    yield from _running(request)


@pytest.fixture(scope="module")
def pulsar_broker_module(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    """A broker for all tests of a module."""
    yield from _running(request)


@pytest.fixture(scope="session")
def pulsar_broker_shared(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    """A broker for the whole session, or for all tests of a worker of pytest-xdist."""
    yield from _running(request)


def _running(request: pytest.FixtureRequest) -> "Iterator[RunningBroker]":
    from pybroker.base.configuration.config import BrokerConfig
    from pybroker.base.configuration.config_file import ConfigError, parse_config
    from pybroker.testing import Story, broker

    settings = BrokerConfig()
    try:
        lines = "\n".join(request.config.getini(SETTINGS))
        settings = parse_config(lines, SETTINGS, settings)
        for marker in reversed(list(request.node.iter_markers(MARKER))):  # the nearest wins
            for key, value in marker.kwargs.items():
                settings = parse_config(f"{key}={_spelt(value)}", f"marker {MARKER}", settings)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    stories = _stories(request.config)
    with broker(settings, http=True, faults=True) as running, Story(running) as story:
        stories[story] = str(request.fixturename)
        try:
            yield running
        finally:
            _ended(request.config)[story] = stories.pop(story)


def _spelt(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- fixtures of the broker that the test uses


def _broker_of(request: pytest.FixtureRequest) -> "RunningBroker":
    used = (name for name in BROKERS if name in request.fixturenames)
    found: RunningBroker = request.getfixturevalue(next(used, BROKERS[0]))
    return found


@pytest.fixture
def pulsar_namespace(request: pytest.FixtureRequest) -> str:
    """A new namespace with a name from the test's name: "public/test_orders-1"."""
    name = re.sub(r"[^-\w]+", "-", request.node.name, flags=re.ASCII)
    return _broker_of(request).new_namespace(name[:100])


@pytest.fixture
def pulsar_topic(pulsar_namespace: str) -> str:
    """The name of a topic in a new namespace. The first producer or consumer creates the topic."""
    return f"persistent://{pulsar_namespace}/topic"


@pytest.fixture
def pulsar_client(request: pytest.FixtureRequest) -> "Iterator[Client]":
    """A connected `pybroker.client.Client` with transactions."""
    from pybroker.client import Client

    with Client(_broker_of(request).service_url, enable_transaction=True) as client:
        yield client


@pytest.fixture
def pulsar_clock(request: pytest.FixtureRequest) -> "VirtualClock":
    """The broker's clock, which the test can advance."""
    return _broker_of(request).clock


@pytest.fixture
def pulsar_faults(request: pytest.FixtureRequest) -> "Iterator[Faults]":
    """The broker's fault points. The test's rules are removed at its end; then the test fails if a
    strict rule has not struck.
    """
    faults = _broker_of(request).faults
    yield faults
    faults.clear_and_check()
