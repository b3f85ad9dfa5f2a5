"""How blocking clients end: closed in use, dropped without a close, closed from a callback."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pybroker.testing
from pybroker.client import (
    AlreadyClosed,
    Client,
    ClientError,
    InitialPosition,
    TransactionOutcomeUnknown,
)
from pybroker.client.blocking.loop_thread import LoopThread, Space
from pybroker.client.transactions.coordinator import Coordinators


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


class Waiting(threading.Thread):
    """A call in another thread, and its outcome."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:
            self.outcome = error

    def ended_with(self) -> object:
        self.join(60)
        assert not self.is_alive(), "still waiting"
        return self.outcome


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create_producer("t"),
        lambda client: client.subscribe("t", "s"),
        lambda client: client.new_transaction(),
    ],
)
def test_closing_ends_what_waits_for_a_broker_that_does_not_answer(call: Callable[[Client], Any]):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"pulsar://127.0.0.1:{silent.getsockname()[1]}")
        waiting = Waiting(lambda: call(client))
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            client.close()
            assert isinstance(waiting.ended_with(), AlreadyClosed)


def test_closing_ends_a_receive_and_a_wait_for_room(service: Any):
    client = Client(service.service_url)
    consumer = client.subscribe("waited", "s", initial_position=InitialPosition.Earliest)
    receiving = Waiting(consumer.receive)
    producer = client.create_producer("waited-room", max_pending_messages=1)
    space = producer._thread.space(1)
    space.take(1)
    crowded = Waiting(lambda: space.take(1))
    client.close()
    assert isinstance(receiving.ended_with(), AlreadyClosed)
    assert crowded.ended_with() is None


def test_what_was_posted_runs_before_the_end_and_nothing_is_taken_after_it():
    thread = LoopThread("test")
    ran: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    thread.post(lambda: (entered.set(), leave.wait(60)))
    entered.wait(60)
    for number in range(100):
        thread.post(ran.append, number)
    leave.set()
    thread.stop()
    assert ran == list(range(100))
    with pytest.raises(AlreadyClosed):
        thread.post(ran.append, 100)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_ends_its_thread_leaves_no_caller_waiting(service: Any):
    client = Client(service.service_url)
    producer = client.create_producer("exits")

    def leave(*_: Any) -> None:
        raise SystemExit

    waiting = Waiting(client.subscribe("silent", "s").receive)  # the receipt may come second
    producer.send_async(b"x", leave)
    assert isinstance(waiting.ended_with(), AlreadyClosed)
    client.close()


def test_a_commit_that_a_close_cuts_short_is_unknown(service: Any, monkeypatch: Any):
    client = Client(service.service_url)
    txn = client.new_transaction()
    asked = threading.Event()

    async def never_answered(*_: object) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Coordinators, "_ask", never_answered)
    committing = Waiting(txn.commit)
    assert asked.wait(60)
    client.close()
    assert isinstance(committing.ended_with(), TransactionOutcomeUnknown)


def test_room_for_many_is_told_of_as_soon_as_there_is_enough():
    space = Space(10)
    space.take(5)
    waiting = Waiting(lambda: space.take(9))
    while not space._changed._waiters:  # type: ignore[attr-defined]
        pass
    space.give_back(3)
    space.give_back(1)
    assert waiting.ended_with() is None


def test_a_client_cannot_be_closed_by_a_callback(service: Any):
    client = Client(service.service_url)
    producer = client.create_producer("closes")
    refusals: list[ClientError] = []

    def close(*_: Any) -> None:
        try:
            client.close()
        except ClientError as error:
            refusals.append(error)

    producer.send_async(b"x", close)
    producer.flush()
    assert "another thread" in str(refusals[0])
    client.close()


def test_a_callback_may_send_though_the_queue_is_full(service: Any):
    with Client(service.service_url) as client:
        producer = client.create_producer("echo", max_pending_messages=1, block_if_queue_full=True)
        answered = threading.Event()
        producer.send_async(b"x", lambda *_: producer.send_async(b"y", lambda *_: answered.set()))
        assert answered.wait(60)


def client_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "pybroker-client"}


def test_a_client_that_nobody_holds_closes_by_itself(service: Any):
    before = client_threads()
    producer = Client(service.service_url).create_producer("dropped", "only-one")
    (thread,) = client_threads() - before
    gc.collect()
    producer.send(b"the producer still holds what it needs")
    del producer
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    with Client(service.service_url) as client:
        client.create_producer("dropped", "only-one")
