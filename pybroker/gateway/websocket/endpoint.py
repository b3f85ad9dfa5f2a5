"""What producers, consumers and readers have in common: a channel, a client, and their end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from pybroker.base.errors import AuthenticationError, AuthorizationError, PulsarError
from pybroker.gateway.clients import VisitorClient
from pybroker.gateway.websocket.channel import GOING_AWAY, Channel, ChannelClosed
from pybroker.gateway.websocket.messages import BadMessage

log = logging.getLogger(__name__)

_BAD_DATA: Final = 1007
_POLICY: Final = 1008
_FAILED: Final = 1011
_MOST_S: Final = 86_400 * 20  # of a timer


class Endpoint:
    def __init__(self, client: VisitorClient) -> None:
        self.at_broker = client
        self.channel: Channel | None = None

    async def open(self) -> None:
        """Opens the producer or consumer. Raises PulsarError, and then nothing is left behind."""
        raise NotImplementedError

    async def serve(self, channel: Channel) -> None:
        """Until the channel is closed. Raises ChannelClosed; PulsarError, BadMessage, which close
        it.
        """
        raise NotImplementedError

    async def run(self) -> None:
        channel = self.channel
        assert channel is not None
        expiry = self._expiry(channel)
        try:
            await self.serve(channel)
        except ChannelClosed:
            pass
        except BadMessage as bad:
            channel.close(_BAD_DATA, str(bad))
        except PulsarError as error:
            is_refusal = isinstance(error, AuthenticationError | AuthorizationError)
            channel.close(_POLICY if is_refusal else _FAILED, error.on_the_wire)
        except Exception:
            log.exception("a WebSocket failed")
            channel.close(_FAILED, "Internal error; see the broker's log")
        finally:
            if expiry is not None:
                expiry.cancel()
            channel.close(GOING_AWAY, "The broker has ended this")
            await self.at_broker.close()

    def _expiry(self, channel: Channel) -> asyncio.TimerHandle | None:
        identity = self.at_broker.visitor.identity
        if identity is None or identity.expires_ms is None:
            return None
        left_s = (identity.expires_ms - self.at_broker.clock.now_ms()) / 1000
        if left_s > _MOST_S:  # then the session ends by itself
            return None
        why = "The credentials have expired: connect again with new ones"
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0, left_s), channel.close, _POLICY, why)

    def go_away(self) -> None:
        """The broker stops."""
        if self.channel is not None:
            self.channel.close(GOING_AWAY, "The broker shuts down: connect again")


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines until one of them raises; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
