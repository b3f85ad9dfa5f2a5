"""Sessions of transactional ids: which session holds an id, and when a newer one replaces it.

A producer names its id (`txn.transactional.id`), and NEW_TXN may do so. A command belongs to the
session that holds the id if it repeats the session's epoch, which is in every answer and which
official clients repeat when they reconnect; or the session's name (`txn.session`), if it has one;
or if it arrives on a connection of the session. Otherwise it starts a newer session:

    1  the new epoch is durable                   from here on, older sessions are fenced
    2  the older session's producers are closed   in the same turn, so it publishes nothing more
    3  its open transactions are aborted, and those that are ending have ended
    4  the client gets its answer

After a crash in between, the next client starts at 1 again, and 3 finds the rest.

Several brokers share the ids; each has the sessions of its own connections. 2 and 3 then happen on
all of them: all brokers see the record of 1, and the broker that grants the session asks the others
(`fence`) before 4. Each broker determines itself which session is the newest.
"""

import asyncio
import logging
from typing import Final

from pybroker.base.errors import NotAllowed, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace, Seldom, Tasks
from pybroker.logs import audit
from pybroker.server.transactions.held_ids import Claim, HeldId, Holder
from pybroker.server.transactions.transactional_session import (
    TransactionalSession,
    Writing,
    not_certain,
)
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.sessions.fencing import end_older
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    NOTES_PER_EXPIRATION,
    IdRecord,
    Overtaken,
    SessionRef,
    TransactionalId,
    producer_fenced,
)

_GRANTED_WITHIN_S: Final = 20.0  # less than the official clients' operation timeout
_CLOSED_A_TURN: Final = 50
_LOOKS_PER_NOTE: Final = 4

log = logging.getLogger(__name__)


class TransactionalSessions:
    """The sessions whose clients are connected."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        coordinators.letting = self
        self._newest: dict[TransactionalId, HeldId] = {}
        self._tasks = Tasks("transactional ids")
        self._looking = False
        self._fencing: dict[SessionRef, asyncio.Task[tuple[int, set[int]]]] = {}
        self.writing = Writing()
        # Transactions that join a session with their first message, until joining is durable.
        self.binding: dict[TxnId, asyncio.Future[TxnId]] = {}
        self._refusals = Seldom(log, "A transactional id was refused")

    def granted(self, connection: Holder, claim: Claim) -> TransactionalSession | None:
        """The session that the claim belongs to, if that is known at once."""
        newest = self._newest.get(claim.id)
        if newest is None or not newest.is_granted or not newest.is_of(connection, claim):
            return None
        assert newest.session.ref is not None
        if not self._is_certain or self._coordinators.ids.is_fenced(newest.session.ref):
            return None
        newest.connections[connection] = None
        connection.sessions[claim.id] = newest.session
        return newest.session

    async def join(self, connection: Holder, claim: Claim) -> TransactionalSession:
        """The session that the claim belongs to, once it holds its id.

        Raises ProducerFenced, NotAllowed (too many ids), or
        ServiceNotReady (it takes long; retry).
        """
        while True:
            held = await self._find(connection, claim)
            if await self._granted(held, connection, claim):
                return held.session

    async def _granted(self, held: HeldId, connection: Holder, claim: Claim) -> bool:
        """False: another broker has begun a session meanwhile, perhaps this one."""
        held.connections[connection] = None
        before, connection.sessions[claim.id] = connection.sessions.get(claim.id), held.session
        if connection.closed:
            self.left(connection)
        assert held.granting is not None
        await asyncio.wait([held.granting], timeout=_GRANTED_WITHIN_S)
        if not held.is_settled:
            raise held.takes_long()
        try:
            await held.granting
            if held.refusal is not None:
                raise NotAllowed(held.refusal)
        except Exception:
            held.take_back(connection, before)
            raise
        if held.is_overtaken:
            held.take_back(connection, before)
            return False
        self._require_current(held.session)
        await self._coordinators.ids.used(claim.id)
        self._require_current(held.session)
        return True

    def _require_current(self, session: TransactionalSession) -> None:
        """Raises ProducerFenced if a newer session has begun, ServiceNotReady while that is not
        known.
        """
        if session.ref is not None and self._coordinators.ids.is_fenced(session.ref):
            session.is_fenced = True
        session.require_current()
        if not self._is_certain:
            raise not_certain(session.id.name)

    async def _find(self, connection: Holder, claim: Claim) -> HeldId:
        while True:
            newest = self._newest.get(claim.id)
            if newest is not None and newest.is_of(connection, claim):
                return newest
            if newest is None or newest.recorded.done():
                break
            await asyncio.wait([newest.recorded], timeout=_GRANTED_WITHIN_S)
            if not newest.recorded.done():
                raise newest.takes_long()
        if self._coordinators.remote_fencing is not None:
            await self._catch_up(claim)
            if self._newest.get(claim.id) is not newest:
                return await self._find(connection, claim)
        known = self._coordinators.ids.get(claim.id)
        if claim.was_fenced(known) or claim.is_fenced_on(connection):
            raise producer_fenced(claim.id.name)
        if known is not None and claim.holds(known):
            ref = SessionRef(claim.id, known.epoch)
            if newest is None or newest.session.is_older_than(ref):
                return self._again(known, claim, newest)
        return self._newer(newest, connection, claim)

    async def _catch_up(self, claim: Claim) -> None:
        """Reads what other brokers have recorded. Raises NotAllowed, ServiceNotReady."""
        remote = self._coordinators.remote_fencing
        assert remote is not None
        if not claim.session and not claim.epoch:
            raise NotAllowed(
                f"Transactional id {claim.id.name!r}: with several brokers, a session needs a "
                "name, so that all of them recognise it: set the property txn.session to a random "
                "text, the same for all producers of this process"
            )
        if not self._is_certain:
            raise not_certain(claim.id.name)
        await remote.all_can_fence()
        await remote.caught_up()

    def _again(self, known: IdRecord, claim: Claim, older: HeldId | None) -> HeldId:
        """Holds an id for a session that is already recorded. Its connection was lost, perhaps in a
        crash of the broker; or another broker recorded it, and has not asked this one yet to fence
        the `older` session.
        """
        if older is not None:  # now: `fence` may report in this turn that nothing is left
            older.session.is_fenced = True
        session = TransactionalSession(claim.id, known.session)
        session.ref = SessionRef(claim.id, known.epoch)
        held = self._newest[claim.id] = HeldId(session)
        held.recorded.set_result(None)
        self._look_after()
        held.granting = self._tasks.start(
            self._grant(held, session.ref, older), "a session reconnects"
        )
        return held

    def _newer(self, older: HeldId | None, connection: Holder, claim: Claim) -> HeldId:
        session = TransactionalSession(claim.id, claim.session)
        held = self._newest[claim.id] = HeldId(session, older)
        actor = audit.Actor(connection.owner or "", connection.peer)
        held.granting = self._tasks.start(self._begin(held, older, actor), "a newer session")
        return held

    async def _begin(self, held: HeldId, older: HeldId | None, actor: audit.Actor) -> int:
        ids, session = self._coordinators.ids, held.session
        is_first = ids.get(session.id) is None
        try:
            session.ref = await ids.begin(session.id, session.name)
        except BaseException as error:
            self._forget(held)
            if older is not None and not older.session.is_over:
                older.connections = {each: None for each in older.connections if not each.closed}
                if older.connections:
                    self._newest[session.id] = older  # it still holds the id
            if isinstance(error, Overtaken):
                held.is_overtaken = True
                return 0
            if not isinstance(error, NotAllowed):
                raise
            held.refusal = str(error)  # `_granted` raises it for each waiting request
            self._refusals.say(f"{actor.who or actor.host}: {error}")
            return 0
        finally:
            held.older = None
            held.recorded.set_result(None)
        self._look_after()
        aborted = await self._grant(held, session.ref, older)
        if not is_first:
            audit.act_as(actor)
            audit.done(
                "fence older sessions",
                f"transactional id {session.id.name}",
                why=f"session {session.ref.epoch} began; {aborted} open transactions were aborted",
            )
        return aborted

    async def _grant(self, held: HeldId, session: SessionRef, older: HeldId | None = None) -> int:
        held.waits_for = "transactions of the previous session are still being ended"
        try:
            if older is not None:
                older.session.is_fenced = True
                await _close_producers(older)
            aborted = await end_older(self._coordinators, session)
            if self._coordinators.remote_fencing is not None:
                aborted += await self._fence_on_other_brokers(held, session)
        except BaseException:
            self._forget(held)  # its epoch is durable: the next claim starts from the id's record
            raise
        if not held.connections:
            self._forget(held)
        return aborted

    # -- several brokers

    async def _fence_on_other_brokers(self, held: HeldId, session: SessionRef) -> int:
        remote = self._coordinators.remote_fencing
        assert remote is not None

        def waits_for(missing: str) -> None:
            held.waits_for = f"older sessions are not fenced everywhere yet: {missing}"
            if not held.connections:
                raise ServiceNotReady("its clients are gone")

        return await remote.fence(session, self._fence_here, waits_for)

    async def fence(self, transactional_id: TransactionalId, epoch: int) -> tuple[int, set[int]]:
        """Fences older sessions for another broker, which says that this epoch has begun. Returns
        the number of aborted transactions, and the coordinators without transactions of older
        sessions.

        Raises ServiceNotReady.
        """
        remote = self._coordinators.remote_fencing
        if remote is not None:
            await remote.caught_up()
        known = self._coordinators.ids.get(transactional_id)
        if known is None or known.epoch < epoch or not self._is_certain:
            raise ServiceNotReady(
                f"Session {epoch} of transactional id {transactional_id.name!r} is unknown here"
            )
        self._look_after()
        newest = SessionRef(transactional_id, known.epoch)
        if (fencing := self._fencing.get(newest)) is None:
            fencing = self._tasks.start(self._fence_here(newest), "fencing for another broker")
            self._fencing[newest] = fencing
            fencing.add_done_callback(lambda _: self._fencing.pop(newest))
        return await asyncio.shield(fencing)

    async def _fence_here(self, newest: SessionRef) -> tuple[int, set[int]]:
        """Returns the number of aborted transactions, and the coordinators that are here."""
        held = self._newest.get(newest.id)
        if held is not None and held.older is not None:
            held = held.older  # a session that is being recorded here finds out itself
        if held is not None and held.session.is_older_than(newest):
            held.session.is_fenced = True
            self._forget(held)
            await _close_producers(held)
        await self.writing.nothing_before(newest)
        aborted = await end_older(self._coordinators, newest)
        return aborted, {each.coordinator_id for each in self._coordinators.served()}

    @property
    def _is_certain(self) -> bool:
        remote = self._coordinators.remote_fencing
        return remote is None or remote.is_certain

    def may_publish(self, session: TransactionalSession) -> bool:
        """False: the session's producers are being closed, because it may have been fenced while
        this broker could not know.
        """
        if self._is_certain:
            return not session.is_released
        self.release_all()
        return False

    def release_all(self) -> None:
        """Implements Letting."""
        newest, self._newest = self._newest, {}
        for held in newest.values():
            for each in (held, held.older):
                if each is not None:
                    self._release(each)

    def _release(self, held: HeldId) -> None:
        held.session.is_released = True
        for connection in held.connections:
            if connection.sessions.get(held.session.id) is held.session:
                del connection.sessions[held.session.id]
        self._tasks.start(_close_producers(held), "letting sessions go")

    async def nothing_is_written(self) -> None:
        await self.writing.nothing()

    def _forget(self, held: HeldId) -> None:
        if self._newest.get(held.session.id) is held:
            del self._newest[held.session.id]

    def left(self, connection: Holder) -> None:
        """The connection is closed. The id's record identifies a client that reconnects."""
        for transactional_id in connection.sessions:
            held = self._newest.get(transactional_id)
            if held is None:
                continue
            held.connections.pop(connection, None)
            if not held.connections and held.is_settled:
                self._forget(held)
        connection.sessions.clear()

    # -- expiry

    def look_after_ids(self) -> None:
        """Call at start: from then on, existing ids expire by time."""
        if len(self._coordinators.ids):
            self._look_after()

    def _look_after(self) -> None:
        if not self._looking:
            self._looking = True
            self._tasks.start(self._expire(), "expiry")

    async def _expire(self) -> None:
        """Records which ids are in use; the others expire when their time is over."""
        ids = self._coordinators.ids
        while len(ids):
            await asyncio.sleep(ids.expiration_ms / 1000 / NOTES_PER_EXPIRATION / _LOOKS_PER_NOTE)
            pace = Pace(_CLOSED_A_TURN)
            for transactional_id, _ in ids:
                await pace.step()
                try:
                    if transactional_id in self._newest or self._has_open(transactional_id):
                        await ids.used(transactional_id)
                    elif self._coordinators.are_all_open:
                        await ids.expire(transactional_id)
                except Exception as error:  # retried at the next check
                    log.warning("Transactional id %r: %s", transactional_id.name, error)
        self._looking = False

    def _has_open(self, transactional_id: TransactionalId) -> bool:
        return any(each.bound_to(transactional_id) for each in self._coordinators.served())

    async def close(self) -> None:
        await self._tasks.close()


async def _close_producers(fenced: HeldId) -> None:
    """Closes a few at once and the others in later turns; until then their SENDs are refused. Their
    clients reconnect and get the reason.
    """
    pace, session = Pace(_CLOSED_A_TURN), fenced.session
    why = session.fenced() if session.is_fenced else not_certain(session.id.name)
    for connection in list(fenced.connections):
        for producer_id, slot in list(connection.producers.items()):
            if slot.transactional_session is not session:
                continue
            if connection.producers.get(producer_id) is slot:
                slot.topic.tasks.start(slot.topic.producers.remove(slot.producer), "fenced")
                connection.close_producer(slot.producer, str(why))
            await pace.step()
