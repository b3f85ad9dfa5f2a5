"""What ends, or fails, leaves nothing behind: timers, requests on their way, an interceptor."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka_produce import FETCH, TOPIC, batch, create, fetch_body, produce
from raw_kafka import RawKafka
from virtual_loop import run_virtually

from managed_ledger.position import Position
from pybroker.kafka.coordinator.consumer_groups import ConsumerGroups
from pybroker.kafka.log import offset_table
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.transactions.kafka_transactions import KafkaTransactions
from pybroker.testing import RunningBroker, broker
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnStatus


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


def test_a_connection_is_finished_when_what_has_begun_is_answered(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as waits, RawKafka(running.kafka_bootstrap) as other:
        create(other)
        finishing: list[asyncio.Task[None]] = []

        async def begun(started: Any) -> bool:
            return any(each._at_work for each in started._kafka._places)

        async def finish(started: Any) -> bool:
            (connection,) = (each for each in started._kafka._places if each._at_work)
            finishing.append(asyncio.ensure_future(connection.finish()))
            for _ in range(5):
                await asyncio.sleep(0)
            return finishing[0].done()

        waits.send(FETCH, 12, fetch_body(TOPIC, 0, wait_ms=30_000))
        running.wait_until(lambda: running.call(begun))
        assert not running.call(finish)
        assert produce(other, TOPIC, batch(b"a"))[0] == 0
        assert waits.receive()["responses"][0]["partitions"][0]["records"]
        running.wait_until(lambda: finishing[0].done())


def test_groups_that_were_stopped_do_not_wake() -> None:
    woken: list[str] = []

    async def life() -> None:
        nothing: Any = None
        memory: Any = SimpleNamespace(drop=lambda group: woken.append(f"dropped {group}"))
        groups = ConsumerGroups(nothing, nothing, nothing, memory)
        later = asyncio.get_running_loop().call_later
        groups._timers["g"] = later(5, woken.append, "woken")
        groups.groups["g"] = nothing
        groups.stop()
        await asyncio.sleep(10)
        assert not groups.groups

    run_virtually(life())
    assert woken == ["dropped g"]


def test_a_topic_that_gets_no_offsets_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise OSError("the disk has an error")

    monkeypatch.setattr(offset_table, "_counted", fails)
    before = object()
    ledger = SimpleNamespace(
        interceptor=before,
        ledgers=lambda: [SimpleNamespace(ledger_id=3)],
        queued_messages=lambda: 0,
        last_confirmed=Position(3, 5),
    )
    topic: Any = SimpleNamespace(ledger=ledger)
    with pytest.raises(OSError, match="disk"):
        asyncio.run(offset_table._is_switched_on(topic))
    assert ledger.interceptor is before


def test_how_long_a_batch_took_is_counted_once_it_is_durable() -> None:
    times = iter((5.0, 7.5))
    counted: list[Any] = []
    answered: list[Any] = []
    log: Any = PartitionLog.__new__(PartitionLog)
    log.topic = SimpleNamespace(
        writes=SimpleNamespace(durable=lambda *said: counted.append(said)),
        clock=SimpleNamespace(monotonic_s=lambda: next(times)),
    )
    done = log._done(SimpleNamespace(entries=[b"entry"]), 41, lambda *said: answered.append(said))
    error = OSError("the disk is full")
    done(None, error)
    assert (answered, counted) == ([(None, error)], [])
    done(Position(1, 1), None)
    assert answered[1:] == [(41, None)]
    assert counted == [([b"entry"], 5, 2.5)]


def test_what_a_crash_kept_from_being_answered_is_aborted_and_nothing_else() -> None:
    id = TransactionalId("ada", "payments")
    now, former = SessionRef(id, 4), SessionRef(id, 3)
    bound = [
        SimpleNamespace(txn_id=number, session=session, status=status)
        for number, (session, status) in enumerate(
            (
                (now, TxnStatus.OPEN),
                (former, TxnStatus.OPEN),
                (now, TxnStatus.COMMITTING),
                (now, TxnStatus.OPEN),
            )
        )
    ]
    aborted: list[int] = []
    coordinator = SimpleNamespace(
        bound_to=lambda asked: bound if asked == id else [],
        abort=lambda txn_id, *_: aborted.append(txn_id),
    )
    transactions: Any = KafkaTransactions.__new__(KafkaTransactions)
    transactions._abort_untold(coordinator, now)
    assert aborted == [0, 3]
