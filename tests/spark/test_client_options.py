"""How `exactly_once` connects to a broker with authentication; no Spark."""

import pickle

import pytest
from credentials import TOKEN_SETTINGS, token

from pybroker.base.errors import NotAllowed
from pybroker.client import AuthenticationError
from pybroker.spark import exactly_once
from pybroker.spark.session import Session
from pybroker.testing import broker

CONTROL = "persistent://public/default/control"


def options_of(service_url, **client_options):
    write = exactly_once(
        lambda batch, batch_id: {},
        service_url=service_url,
        checkpoint="/checkpoint",
        control_topic=CONTROL,
        client_options=client_options,
    )
    return write.options


def test_exactly_once_comes_in_with_the_sources_options():
    credentials = {
        "pulsar.client.authPluginClassName": "AuthenticationToken",
        "pulsar.client.authParams": f"token:{token()}",
    }
    with broker(**TOKEN_SETTINGS) as running:
        options = options_of(running.service_url, **credentials)
        assert token() not in repr(options)
        connect = pickle.loads(pickle.dumps(options.connect))  # as it is sent to tasks
        session = Session(connect(options.service_url))
        session.publish(CONTROL, b"in")
        session.close()
        stranger = Session(options_of(running.service_url).connect(running.service_url))
        with pytest.raises(AuthenticationError):
            stranger.publish(CONTROL, b"not in")
        stranger.close()


def test_what_is_no_option_of_clients_is_refused():
    with pytest.raises(
        NotAllowed, match=r"contains topic; it accepts only options of pulsar\.client"
    ):
        options_of("pulsar://somewhere:6650", topic="x")
