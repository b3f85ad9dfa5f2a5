"""The places that a listener has for connections: limited in total, and for each machine.

Machines are told apart by their addresses; an IPv6 address counts with its /64. At a limit, a
connection that has not logged in makes room: the oldest of the same machine, or of the machine with
most such connections. If there is none, the new connection is refused.
Source: broker.conf, brokerMaxConnections and brokerMaxConnectionsPerIp.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.machines import machine_of
from pybroker.base.runtime import Seldom
from pybroker.security.pending_connections import PendingConnections

T = TypeVar("T")

IN_ALL: Final = "brokerMaxConnections"
OF_A_MACHINE: Final = "brokerMaxConnectionsPerIp"


class ConnectionPlaces(Generic[T]):
    """Iterates over the connections, the oldest first."""

    def __init__(
        self, config: BrokerConfig, log: logging.Logger, make_room: Callable[[T], object]
    ) -> None:
        """`make_room` closes a connection that has not logged in, and calls `forget`."""
        self._most = config.broker_max_connections
        self._most_of_a_machine = config.broker_max_connections_per_ip
        self._make_room = make_room
        self._machines: dict[T, str] = {}
        self._of_machine: Counter[str] = Counter()
        self._pending = PendingConnections[T]()
        refused = "refused a connection: "
        self._said = {
            IN_ALL: Seldom(log, f"{refused}%d are open ({IN_ALL})", self._most),
            OF_A_MACHINE: Seldom(
                log,
                f"{refused}its address has %d open ({OF_A_MACHINE})",
                self._most_of_a_machine,
            ),
        }

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._machines))

    def __len__(self) -> int:
        return len(self._machines)

    def admit(self, connection: T, address: str) -> str | None:
        """The name of the limit that refuses the connection; None if it got a place."""
        machine = machine_of(address)
        if refused := self._refused(machine, address):
            self._said[refused].say(address)
            return refused
        self._machines[connection] = machine
        self._of_machine[machine] += 1
        self._pending.add(connection, address)
        return None

    def _refused(self, machine: str, address: str) -> str | None:
        if len(self._machines) >= self._most > 0:
            oldest = self._pending.oldest_where_most_are()
            if oldest is None:
                return IN_ALL
            self._make_room(oldest)
        if self._of_machine[machine] >= self._most_of_a_machine > 0:
            oldest = self._pending.oldest_of(address)
            if oldest is None:
                return OF_A_MACHINE
            self._make_room(oldest)
        return None

    def logged_in(self, connection: T) -> None:
        """It keeps its place from now on."""
        self._pending.remove(connection)

    def has_logged_in(self, connection: T) -> bool:
        return connection not in self._pending

    def forget(self, connection: T) -> bool:
        """Whether it had a place. May be repeated."""
        machine = self._machines.pop(connection, None)
        self._pending.remove(connection)
        if machine is None:
            return False
        self._of_machine[machine] -= 1
        if not self._of_machine[machine]:
            del self._of_machine[machine]
        return True
