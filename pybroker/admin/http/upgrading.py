"""Gives a connection to another protocol, once a handler has answered 101.

A handler puts the protocol into the scope and answers like any other. So the request passes every
stage before it and is refused, audited and logged like any other; only the last step, on the
connection itself, is different.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SWITCH: Final = "pybroker.switch"  # key in the scope; absent without a connection
_SWITCHING_PROTOCOLS: Final = 101


class NewProtocol(Protocol):
    def head(self) -> bytes: ...


# Called once with the protocol that the connection goes on with.
Switch = Callable[[Any], None]


class Switching:
    """`protocol`: what a handler wants the connection to go on with."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self.protocol: Any = None
        self.is_done = False

    def now(self) -> None:
        self.is_done = True
        self._switch(self.protocol)


def with_switch(app: ASGIApp, switch: Switch) -> ASGIApp:
    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        switching = Switching(switch)

        async def sent(message: Message) -> None:
            if message.get("status") == _SWITCHING_PROTOCOLS:
                switching.now()
            elif not switching.is_done:
                await send(message)

        await app({**scope, SWITCH: switching}, receive, sent)

    return called


class SwitchResponse(Response):
    """The answer after which the connection is `protocol`'s. Then `begun` is called, or `gave_up`
    if it comes to nothing.
    """

    def __init__(
        self, protocol: NewProtocol, begun: Callable[[], None], gave_up: Callable[[], None]
    ) -> None:
        super().__init__(status_code=_SWITCHING_PROTOCOLS)
        self._protocol = protocol
        self._begun = begun
        self._gave_up = gave_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SWITCH].protocol = self._protocol
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            if not scope[SWITCH].is_done:
                self._gave_up()
                raise
        (self._begun if scope[SWITCH].is_done else self._gave_up)()
