"""The load during the kills: workers in threads; each records the promises made to it.

- numbers: plain messages 0, 1, 2… to `numbers` by one named producer, so that deduplication drops
  messages that the client resends after a kill;
- triples: one message on each of three topics in one transaction; every fifth aborts on purpose;
- copies: takes from `numbers`, publishes to `copies` and acknowledges in one transaction;
- sessions: of a transactional id; each replaces the previous one (kill_sessions.py).
"""

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from pybroker.base.errors import PersistenceError, TransactionCoordinatorNotFound
from pybroker.client import (
    Client,
    ConnectError,
    Consumer,
    ConsumerType,
    InitialPosition,
    InvalidTxnStatus,
    Message,
    MessageId,
    Result,
    ServiceNotReady,
    Timeout,
    Transaction,
    TransactionConflict,
    TransactionOutcomeUnknown,
)

NUMBERS, COPIES = "numbers", "copies"
TRIPLE = ("triple-a", "triple-b", "triple-c")
MAX_BACKLOG = 500
BURST = 100
MAX_COPIES_PER_TXN = 10
TXN_TIMEOUT_MS = 60_000
STALLED_AFTER_S = 60
# Failures of a transaction in a cluster, besides lost connections: it is aborted and repeated.
SETBACKS = (ConnectError, PersistenceError, ServiceNotReady, TransactionCoordinatorNotFound)


@dataclass(slots=True)
class Books:
    """The outcomes reported to clients, to compare topics with."""

    acknowledged_numbers: list[int] = field(default_factory=list)
    committed_triples: set[int] = field(default_factory=set)
    aborted_triples: set[int] = field(default_factory=set)
    committed_copies: list[int] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"{len(self.acknowledged_numbers)} messages, "
            f"{len(self.committed_triples)} transactions over three topics committed, "
            f"{len(self.aborted_triples)} aborted, {len(self.committed_copies)} copied"
        )


class Progress:
    """The progress of each worker; a round waits for all of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[str, int] = {}
        self._failure: str | None = None
        self.stopping = False

    def made(self, worker: str, count: int = 1) -> None:
        with self._changed:
            self._counts[worker] = self._counts.get(worker, 0) + count
            self._changed.notify_all()

    def failed(self, worker: str) -> None:
        with self._changed:
            self._failure = f"{worker} failed:\n{traceback.format_exc()}"
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def count(self, worker: str) -> int:
        return self._counts.get(worker, 0)

    def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """False after the timeout. Raises RuntimeError with the traceback of a failed worker."""
        with self._changed:
            happened = self._changed.wait_for(lambda: self._failure or reached(), timeout_s)
            if self._failure:
                raise RuntimeError(self._failure)
            return bool(happened)


def start_worker(name: str, progress: Progress, work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except Exception:
            progress.failed(name)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def publish_numbers(client: Client, progress: Progress, books: Books) -> None:
    """Publish in bursts, so that a kill hits messages in every state."""
    producer = client.create_producer(NUMBERS, producer_name="numbers", send_timeout_millis=0)

    def acknowledged(number: int) -> Callable[[object, MessageId | None], None]:
        def callback(result: object, _: MessageId | None) -> None:
            assert result == Result.Ok, result
            books.acknowledged_numbers.append(number)

        return callback

    while not progress.stopping:
        wait_for_copies(progress)
        first = progress.count("numbers")
        for number in range(first, first + BURST):
            producer.send_async(str(number).encode(), acknowledged(number), sequence_id=number)
        producer.flush()
        progress.made("numbers", BURST)


def wait_for_copies(progress: Progress) -> None:
    def may_publish() -> bool:
        backlog = progress.count("numbers") - progress.count("copies")
        return progress.stopping or backlog < MAX_BACKLOG

    progress.wait_until(may_publish, STALLED_AFTER_S)


def publish_triples(client: Client, progress: Progress, books: Books) -> None:
    producers = [
        client.create_producer(topic, producer_name=topic, send_timeout_millis=0)
        for topic in TRIPLE
    ]
    triple = 0
    while not progress.stopping:
        began_s = time.monotonic()
        txn = client.new_transaction(timeout_ms=TXN_TIMEOUT_MS)
        try:
            for producer in producers:
                producer.send(str(triple).encode(), txn=txn)
            commits = triple % 5 != 4 and end(client, txn, commit=True)
        except SETBACKS:
            commits = False  # whether the message is stored is unknown: start over
        except InvalidTxnStatus as refusal:
            check_timed_out(began_s, refusal)
            commits = False
        if not commits:
            end(client, txn, commit=False)
        (books.committed_triples if commits else books.aborted_triples).add(triple)
        triple += 1
        progress.made("triples")


def copy_numbers(client: Client, progress: Progress, books: Books) -> None:
    """Copy; continues after `stop` until all published numbers are copied."""
    consumer = client.subscribe(
        NUMBERS,
        "copies",
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
    )
    producer = client.create_producer(COPIES, producer_name="copies", send_timeout_millis=0)
    while not (progress.stopping and progress.count("copies") >= progress.count("numbers")):
        messages = receive_some(consumer)
        if not messages:
            continue
        began_s = time.monotonic()
        txn = client.new_transaction(timeout_ms=TXN_TIMEOUT_MS)
        try:
            for message in messages:
                producer.send(message.data(), txn=txn)
                consumer.acknowledge(message, txn=txn)
        except (*SETBACKS, TransactionConflict, InvalidTxnStatus) as error:
            # A conflict: a message was redelivered after a kill, but its commit had succeeded.
            if isinstance(error, InvalidTxnStatus):
                check_timed_out(began_s, error)
            end(client, txn, commit=False)
            consumer.redeliver_unacknowledged_messages()  # also untouched ones
            continue
        if end(client, txn, commit=True):
            books.committed_copies += [int(message.data()) for message in messages]
            progress.made("copies", len(messages))


def check_timed_out(began_s: float, refusal: InvalidTxnStatus) -> None:
    """Raises RuntimeError if the transaction, which nobody else ends, is younger than its timeout.
    The refusal names its state, and who ended it, if that was neither its owner nor the timeout.
    """
    age_s = time.monotonic() - began_s
    if 1000 * age_s < TXN_TIMEOUT_MS:
        raise RuntimeError(f"{age_s:.1f} s after it began: {refusal}") from refusal


def receive_some(consumer: Consumer) -> list[Message]:
    messages: list[Message] = []
    try:
        while len(messages) < MAX_COPIES_PER_TXN:
            messages.append(consumer.receive(timeout_millis=10 if messages else 2000))
    except Timeout:
        pass
    return messages


def end(client: Client, txn: Transaction, commit: bool) -> bool:
    """End the transaction; repeats the request until the outcome is known. False if it ended
    otherwise.
    """
    while True:
        try:
            if commit:
                txn.commit()
            else:
                txn.abort()
            return True
        except InvalidTxnStatus:
            return False
        except TransactionOutcomeUnknown as unknown:
            txn = client.attach_transaction(unknown.txn_id)
