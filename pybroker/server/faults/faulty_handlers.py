"""Wraps the table of handlers with their fault points."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.faults.points import STEPS, Action
from pybroker.faults.rule import Lost, Rule, waited
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.connections.requests import as_answer, though_closed
from pybroker.server.faults.faulty_session import FaultySession
from pybroker.server.handler import Handler
from pybroker.wire import pulsar_api_pb2 as pb

_T: Final = pb.BaseCommand
# While one of these waits, other commands on its connection continue.
_OF_CONSUMERS: Final = frozenset({_T.ACK, _T.FLOW, _T.REDELIVER_UNACKNOWLEDGED_MESSAGES})


def faulty_handlers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """For `FaultySession`."""
    return {kind: _faulty(kind, handler) for kind, handler in handlers.items()}


def _faulty(kind: int, handler: Handler) -> Handler:
    if kind not in STEPS:
        return handler
    handler = replace(handler, answer_error=partial(_unless_lost, handler))
    gate = _FaultGate(kind, handler)
    if handler.immediate is not None:
        return replace(handler, immediate=gate.immediate)
    if handler.begun is not None:
        return replace(handler, begun=gate.begun)
    return replace(handler, deferred=gate.deferred)


def _unless_lost(handler: Handler, session: Connection, body: Any, error: PulsarError) -> None:
    if not isinstance(error, Lost):
        handler.answer_error(session, body, error)


class _FaultGate:
    """Passes the fault point before one handler."""

    def __init__(self, kind: int, handler: Handler) -> None:
        self._kind = kind
        self._handler = handler

    def _arrived(self, session: Connection, body: Any) -> Rule | None:
        """The rule that delays the command, or None. Raises the error of a rule that fails it, and
        Lost.
        """
        assert isinstance(session, FaultySession)
        rule = session.arrived(self._kind, self._handler, body)
        if rule is None:
            return None
        if rule.action is Action.FAIL:
            raise rule.error()
        if rule.action is Action.CUT:
            session.cut()
        if rule.action in (Action.CUT, Action.DROP):
            raise Lost
        return rule

    def immediate(self, session: Connection, body: Any) -> Rest | None:
        assert isinstance(session, FaultySession)
        rule = self._arrived(session, body)
        if self._kind in _OF_CONSUMERS:
            return self._of_consumer(session, body, rule)
        return self._run(session, body) if rule is None else self._later(session, body, rule)

    def _run(self, session: FaultySession, body: Any) -> Rest | None:
        assert self._handler.immediate is not None
        rest = self._handler.immediate(session, body)
        if rest is not None:
            return self._rest(session, body, rest)
        session.done_unasked(self._kind, body)
        return None

    async def _rest(self, session: FaultySession, body: Any, rest: Rest) -> None:
        await rest
        session.done_unasked(self._kind, body)

    async def _later(self, session: FaultySession, body: Any, rule: Rule) -> None:
        await waited(rule)
        if not session.closed and (rest := self._run(session, body)) is not None:
            await rest

    def _of_consumer(self, session: FaultySession, body: Any, rule: Rule | None) -> Rest | None:
        before = session.waiting.get(body.consumer_id)
        if rule is None and before is None:
            return self._run(session, body)
        work = self._behind(session, body, rule, before)
        task = session.requests.start(work, self._handler.field, body.ByteSize())
        session.waiting[body.consumer_id] = task
        task.add_done_callback(lambda ended: session.waited(body.consumer_id, ended))
        return None

    async def _behind(
        self,
        session: FaultySession,
        body: Any,
        rule: Rule | None,
        before: "asyncio.Task[None] | None",
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            if rule is None:
                rest = None if session.closed else self._run(session, body)
            else:
                rest = self._later(session, body, rule)
            if rest is not None:
                await rest
        except Exception as error:
            self._handler.answer_error(session, body, as_answer(error))

    def begun(self, session: Connection, body: Any) -> Awaitable[Any]:
        rule = self._arrived(session, body)
        assert self._handler.begun is not None
        if rule is None:
            return self._handler.begun(session, body)
        return self._begun_later(session, body, rule)

    async def _begun_later(self, session: Connection, body: Any, rule: Rule) -> Any:
        await waited(rule)
        assert self._handler.begun is not None
        return await though_closed(self._handler.begun(session, body))

    async def deferred(self, session: Connection, body: Any) -> None:
        rule = self._arrived(session, body)
        if rule is not None:
            await waited(rule)
        assert self._handler.deferred is not None
        await self._handler.deferred(session, body)
