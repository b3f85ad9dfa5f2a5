"""What the client logs while it cannot connect."""

import asyncio
import errno
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from pybroker.client import ConnectError, Timeout
from pybroker.client.connection.unreachable import SLOW_S, reason

NAMED = "cannot connect to pulsar://one:6650"


def test_an_address_that_cannot_be_reached_is_logged_at_once_and_once(
    broker: ScriptedBroker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.down = True

    async def work() -> None:
        opening = asyncio.ensure_future(client.create_producer("t"))
        await asyncio.sleep(0.01)
        assert caplog.text.count(NAMED) == 1
        with pytest.raises(ConnectError):
            await opening

    broker.run(work())
    assert caplog.text.count(NAMED) == 1
    assert "still trying" in caplog.text


def test_an_address_that_was_reached_again_is_logged_again(
    broker: ScriptedBroker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        await client.create_producer("t")
        for outage in (1, 2):
            broker.down = True
            broker.peer.drop()
            await asyncio.sleep(5)
            assert caplog.text.count(NAMED) == outage
            broker.down = False
            await asyncio.sleep(5)

    broker.run(work())


def test_a_broker_that_does_not_answer_is_logged_within_two_seconds(
    broker: ScriptedBroker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.never_answers("Connect")

    async def work() -> None:
        opening = asyncio.ensure_future(client.create_producer("t"))
        await asyncio.sleep(SLOW_S + 0.01)
        assert f"{NAMED}: no answer within 2 s" in caplog.text
        with pytest.raises((ConnectError, Timeout)):
            await opening

    broker.run(work())


def test_a_reachable_broker_is_not_logged(
    broker: ScriptedBroker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        await client.create_producer("t")
        await asyncio.sleep(2 * SLOW_S)

    broker.run(work())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "nothing listens there"),
        (
            OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] ('::1', 1), and so on"),
            "nothing listens there",
        ),
        (TimeoutError(), "timed out"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
    ],
)
def test_the_reason_is_given_in_words(error: OSError, words: str) -> None:
    assert words in reason(error)
