"""Wraps the table of handlers with checks against the table of permissions.

Without authentication the broker uses the plain table, so nothing is checked. Commands about a
connection's own producers, consumers and topic list watchers pass unchecked: when a permission is
revoked, the broker closes those that the permission admitted (`close_unpermitted`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pybroker.base.errors import AuthorizationError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.brokers.ownership import ALONE
from pybroker.security.authorization import Authorizer, Need, Target
from pybroker.security.permissions import COMMANDS, CommandRow, initial_subscription
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.connections.requests import though_closed
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.handler import Handler
from pybroker.server.transactions.transaction_owner import check_owner
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_FREE = (Need.NOTHING, Need.LOGIN, Need.OWN)
# Checked again afterwards: the permission may have been revoked in the meantime.
_LETS_IN = (_T.PRODUCER, _T.SUBSCRIBE)
_LOOKS_A_TURN = 500


def guarded_handlers(
    handlers: Mapping[int, Handler], authorizer: Authorizer | None
) -> dict[int, Handler]:
    """Without an `authorizer` any role may do everything, but only in its own transactions."""
    return {kind: _guarded(kind, handler, authorizer) for kind, handler in handlers.items()}


def _guarded(kind: int, handler: Handler, authorizer: Authorizer | None) -> Handler:
    row = COMMANDS[kind]
    if kind == _T.ACK:
        return replace(handler, immediate=_acknowledges(handler))
    if row.need in _FREE or authorizer is None:
        return handler
    gate = _Gate(kind, row, handler, authorizer)
    if handler.immediate is not None:
        return replace(handler, immediate=gate.immediate)
    if handler.begun is not None:
        return replace(handler, begun=gate.begun)
    return replace(handler, deferred=gate.deferred)


class _Gate:
    """Runs before a handler. A refusal is answered like the handler's own errors."""

    def __init__(
        self, kind: int, row: CommandRow, handler: Handler, authorizer: Authorizer
    ) -> None:
        self._kind = kind
        self._row = row
        self._handler = handler
        self._authorizer = authorizer

    def immediate(self, session: Connection, body: Any) -> Rest | None:
        if not self._passes(session, body):
            return self._immediate_later(session, body)
        assert self._handler.immediate is not None
        return self._handler.immediate(session, body)

    async def _immediate_later(self, session: Connection, body: Any) -> None:
        await self._check_up_to_date(session, body)
        assert self._handler.immediate is not None
        rest = self._handler.immediate(session, body)
        if rest is not None:
            await rest

    def begun(self, session: Connection, body: Any) -> Awaitable[Any]:
        if not self._passes(session, body):
            return self._begun_later(session, body)
        assert self._handler.begun is not None
        return self._handler.begun(session, body)

    async def _begun_later(self, session: Connection, body: Any) -> Any:
        await self._check_up_to_date(session, body)
        assert self._handler.begun is not None
        return await though_closed(self._handler.begun(session, body))

    async def deferred(self, session: Connection, body: Any) -> None:
        if not self._passes(session, body):
            await self._check_up_to_date(session, body)
        assert self._handler.deferred is not None
        await self._handler.deferred(session, body)
        if self._kind in _LETS_IN and not self._is_permitted(session, body):
            await close_unpermitted(session, self._authorizer, Pace(_LOOKS_A_TURN))

    def _is_permitted(self, session: Connection, body: Any) -> bool:
        """Checks only this command again: a connection may have thousands of producers."""
        assert session.login is not None
        identity = session.login.identity
        targets = self._row.about(body)
        return all(self._authorizer.may(identity, self._row.need, target) for target in targets)

    def _passes(self, session: Connection, body: Any) -> bool:
        """False if `_check_up_to_date` must decide: clients give up after a refusal, and another
        broker may have just granted the permission. Raises AuthorizationError.
        """
        try:
            self._check(session, body)
        except AuthorizationError:
            if session.services.topics.ownership is ALONE:
                raise
            return False
        return True

    async def _check_up_to_date(self, session: Connection, body: Any) -> None:
        """Raises AuthorizationError if the role lacks the permission, ServiceNotReady while it is
        unknown.
        """
        await session.services.topics.ownership.refreshed()
        self._check(session, body)

    def _check(self, session: Connection, body: Any) -> None:
        assert session.login is not None
        identity = session.login.identity
        for target in self._row.about(body):
            self._authorizer.require(identity, self._row.need, target, self._row.doing)
        if self._kind == _T.PRODUCER:
            for target in initial_subscription(body):
                self._authorizer.require(identity, Need.CONSUME, target, "subscribe")


def _acknowledges(handler: Handler) -> Any:
    plain = handler.immediate
    assert plain is not None

    def acknowledge(session: Connection, body: pb.CommandAck) -> Rest | None:
        if body.HasField("txnid_least_bits"):
            check_owner(session, TxnId(body.txnid_most_bits, body.txnid_least_bits))
        return plain(session, body)

    return acknowledge


# -- permissions that were revoked


class Revocations:
    """Checks all connections when permissions have changed, a few at a time."""

    def __init__(
        self, authorizer: Authorizer, sessions: Callable[[], Sequence[Connection]]
    ) -> None:
        self._authorizer = authorizer
        self._sessions = sessions
        self._to_do = self._looking = False
        self._tasks = Tasks("permissions")

    def changed(self) -> None:
        self._to_do = True
        if not self._looking:
            self._looking = True
            self._tasks.start(self._look(), "closing producers and consumers without permission")

    async def applied(self) -> None:
        """Returns when all changes so far have taken effect on every connection."""
        await self._tasks.ended()

    async def close(self) -> None:
        await self._tasks.close()

    async def _look(self) -> None:
        pace = Pace(_LOOKS_A_TURN)
        try:
            while self._to_do:
                self._to_do = False
                for session in self._sessions():
                    await pace.step()
                    await close_unpermitted(session, self._authorizer, pace)
        finally:  # in the same turn: a later change must start another check
            self._looking = False


async def close_unpermitted(session: Connection, authorizer: Authorizer, pace: Pace) -> None:
    """Closes producers and consumers that would not be admitted now. Their clients reconnect and
    get the reason. Watches only go silent: the protocol has no command to end them.
    """
    if session.login is None or session.closed:
        return
    identity, may = session.login.identity, authorizer.may
    for producer_id, producer in list(session.producers.items()):
        await pace.step()
        target = Target.of_topic(producer.topic.name)
        is_there = session.producers.get(producer_id) is producer
        if is_there and not may(identity, Need.PRODUCE, target):
            _close_producer(session, producer)
    for consumer_id, consumer in list(session.consumers.items()):
        await pace.step()
        target = Target.of_topic(consumer.topic.name, consumer.subscription.name)
        is_there = session.consumers.get(consumer_id) is consumer
        if is_there and not may(identity, Need.CONSUME, target):
            consumer.subscription.remove_consumer(consumer.consumer)
            session.close_consumer(consumer.consumer, "its permission was revoked")
    for key, watcher in list(session.watchers.items()):
        await pace.step()
        is_there = session.watchers.get(key) is watcher
        if is_there and await watcher.end_unpermitted(partial(may, identity), pace):
            session.watchers.pop(key, None)


def _close_producer(session: Connection, slot: ProducerSlot) -> None:
    slot.topic.tasks.start(
        slot.topic.producers.remove(slot.producer), "producer without permission"
    )
    session.close_producer(slot.producer, "its permission was revoked")
