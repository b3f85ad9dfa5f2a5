"""What one connection uses of the V5 SDK's commands: it ends with the connection."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import wraps
from typing import Final, Protocol, TypeVar

from pybroker.base.errors import AuthorizationError, NotAllowed, TooManyRequests
from pybroker.base.runtime import Pace
from pybroker.security.authorization import Need, Target
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.watching import May

_KEY: Final = "v5"
MAX_WATCHES: Final = 20_000  # of one connection, of all kinds: a client has one for each topic


_Command = TypeVar("_Command")
_Handle = Callable[[Connection, _Command], Awaitable[None]]


class Kind(Enum):
    LAYOUT = auto()
    CONSUMER = auto()
    COORDINATORS = auto()
    TOPICS = auto()


class Watch(Protocol):
    """Something of which a client hears until it closes it, by an id of its own."""

    @property
    def need(self) -> tuple[Need, Target] | None:
        """What its client must be permitted; None: nothing."""
        ...

    def end(self) -> None: ...


class V5Session:
    """Implements Watching."""

    def __init__(self) -> None:
        self._watches: dict[tuple[Kind, int], Watch] = {}

    def add(self, kind: Kind, watch_id: int, watch: Watch) -> None:
        """A former one of the same id ends. Raises TooManyRequests."""
        self.remove(kind, watch_id)
        if len(self._watches) >= MAX_WATCHES:
            raise TooManyRequests(
                f"This connection already has {MAX_WATCHES} watches of topics and consumers of "
                "segments: close some, or use another client"
            )
        self._watches[kind, watch_id] = watch

    @contextmanager
    def beginning(self, kind: Kind, watch_id: int, watch: Watch) -> Iterator[None]:
        """Adds the watch, which ends if it cannot begin. Raises TooManyRequests."""
        self.add(kind, watch_id, watch)
        try:
            yield
        except BaseException:
            self.remove(kind, watch_id, only=watch)
            watch.end()
            raise

    def remove(self, kind: Kind, watch_id: int, only: Watch | None = None) -> Watch | None:
        """Ends the watch, if it is there and no other than `only`; returns it."""
        watch = self._watches.get((kind, watch_id))
        if watch is None or (only is not None and watch is not only):
            return None
        del self._watches[kind, watch_id]
        watch.end()
        return watch

    def require(self, kind: Kind, watch_id: int, watch: Watch) -> None:
        """Raises AuthorizationError if the watch has ended: commands about the same id come after
        each other, so it was its permission that went, or the connection.
        """
        if self._watches.get((kind, watch_id)) is not watch:
            raise AuthorizationError("Client is not authorized", "its permission was revoked")

    def end(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.end()

    async def end_unpermitted(self, may: May, pace: Pace) -> bool:
        """They go silent: the protocol has no command to end them."""
        for (kind, watch_id), watch in list(self._watches.items()):
            await pace.step()
            if watch.need is not None and not may(*watch.need):
                self.remove(kind, watch_id, only=watch)
        return not self._watches


def v5_session(session: Connection) -> V5Session:
    """Raises NotAllowed if clients of the V5 SDK are not served."""
    if not session.services.config.scalable_topics_enabled:
        raise NotAllowed(
            "Clients of the V5 SDK are not served here: set scalableTopicsEnabled=true in the "
            "broker's configuration, or use a 4.x client"
        )
    found = session.watchers.get(_KEY)
    if found is None:
        found = session.watchers[_KEY] = V5Session()
    assert isinstance(found, V5Session)
    return found


def measured(request: str) -> Callable[[_Handle[_Command]], _Handle[_Command]]:
    """Counts how long a handler takes, as a request of this type."""

    def of(handle: _Handle[_Command]) -> _Handle[_Command]:
        @wraps(handle)
        async def counted(session: Connection, command: _Command) -> None:
            services = session.services
            v5_session(session)
            measures = services.topics.scalable.measures
            with measures.requests_s.measured(services.clock, request):
                await handle(session, command)

        return counted

    return of
