"""WATCH_TC_ASSIGNMENTS and its close: the broker of each transaction coordinator."""

from pybroker.base.errors import NotAllowed
from pybroker.base.listeners import Listener
from pybroker.server.connections.connection import Connection
from pybroker.server.scalable.coordinator_places import Places
from pybroker.server.scalable.v5_session import Kind, measured, v5_session
from pybroker.wire import pulsar_api_pb2 as pb


class CoordinatorWatch:
    """Tells a client which broker serves each transaction coordinator. Implements Watch."""

    need = None

    def __init__(self, session: Connection, watch_id: int) -> None:
        self._session = session
        self._id = watch_id
        self._told = self._tell  # one object, which identifies the watch

    async def begin(self) -> None:
        await self._session.services.scalable.coordinators.begin(self._told)

    def end(self) -> None:
        self._session.services.scalable.coordinators.end(self._told)

    def _tell(self, places: Places) -> None:
        session = self._session
        snapshot = pb.TcAssignmentsSnapshot(
            parallelism=session.services.scalable.coordinators.count
        )
        for coordinator_id, owner in places:
            listeners, own = session.services.listeners, Listener(*session.broker_urls)
            if owner is not None:
                listeners, own = owner.listeners, Listener(*owner.address)
            told = listeners.told("", own)
            snapshot.assignments.add(
                tc_id=coordinator_id,
                broker_service_url=told.broker_url or None,
                broker_service_url_tls=told.broker_url_tls or None,
            )
        update = pb.CommandWatchTcAssignmentsUpdate(watch_id=self._id, snapshot=snapshot)
        session.send_command(update)


@measured("watch_coordinators")
async def watch(session: Connection, command: pb.CommandWatchTcAssignments) -> None:
    watches, config = v5_session(session), session.services.config
    if not (
        config.transaction_coordinator_enabled
        and config.transaction_coordinator_scalable_topics_enabled
    ):
        raise NotAllowed(
            "Transactions of the V5 SDK are disabled; set transactionCoordinatorEnabled and "
            "transactionCoordinatorScalableTopicsEnabled to true in the broker's configuration"
        )
    if session.closed:
        return  # nothing would end the watch
    begun = CoordinatorWatch(session, command.watch_id)
    with watches.beginning(Kind.COORDINATORS, command.watch_id, begun):
        await begun.begin()
        watches.require(Kind.COORDINATORS, command.watch_id, begun)


async def close(session: Connection, command: pb.CommandWatchTcAssignmentsClose) -> None:
    v5_session(session).remove(Kind.COORDINATORS, command.watch_id)
