"""A newer session waits for the messages that older ones have sent to this broker's topics."""

import asyncio

import pytest

from pybroker.base.errors import ProducerFenced, ServiceNotReady
from pybroker.server.transactions.transactional_session import TransactionalSession, Writing
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId

ID = TransactionalId(None, "billing")
NEWEST = SessionRef(ID, 2)


def session(epoch: int, name: str = ID.name) -> TransactionalSession:
    session = TransactionalSession(TransactionalId(None, name), "")
    session.ref = SessionRef(session.id, epoch)
    return session


def test_each_run_of_an_older_session_is_waited_for() -> None:
    asyncio.run(_each_run_is_waited_for())


async def _each_run_is_waited_for() -> None:
    writing, older, newer, other = Writing(), session(1), session(2), session(1, "other")
    for each in (older, older, newer, other):
        writing.begun(each)
    waiting = [asyncio.ensure_future(writing.nothing_before(NEWEST)) for _ in range(2)]
    everything = asyncio.ensure_future(writing.nothing())
    for _ in range(2):
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        writing.ended(older)
    await asyncio.gather(*waiting)
    assert not everything.done()
    for each in (newer, other):
        writing.ended(each)
    await everything
    await writing.nothing_before(NEWEST)


def test_a_session_that_was_let_go_says_so_and_one_that_was_fenced_stays_so() -> None:
    older = session(1)
    older.require_current()
    older.is_released = True
    assert older.is_over
    with pytest.raises(ServiceNotReady, match="'billing': this broker is stopping, or has no"):
        older.require_current()
    older.is_fenced = True
    with pytest.raises(ProducerFenced):
        older.require_current()
