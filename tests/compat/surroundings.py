"""The environment of a test in another language: a broker, and a broker that requires a token."""

from collections.abc import Iterator
from contextlib import contextmanager

from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.testing import RunningBroker


@contextmanager
def surroundings() -> Iterator[tuple[RunningBroker, dict[str, str]]]:
    """The first broker, with HTTP, and the environment variables."""
    with (
        pybroker.testing.broker(http=True) as broker,
        pybroker.testing.broker(**TOKEN_SETTINGS) as secured,
    ):
        variables = {
            "SERVICE_URL": broker.service_url,
            "SECURED_URL": secured.service_url,
            "TOKEN": token("alice"),
        }
        yield broker, variables
