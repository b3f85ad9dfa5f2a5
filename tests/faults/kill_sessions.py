"""Sessions of one transactional id during the kills: each is replaced while it publishes.

A replaced session continues as a zombie until it learns that it was fenced. Messages that it sends
after the next session was granted must never be visible; those sent before must come first in their
topic.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kill_books import compare, read_all
from kill_workers import (
    SETBACKS,
    STALLED_AFTER_S,
    TXN_TIMEOUT_MS,
    Books,
    Progress,
    end,
    start_worker,
)

from pybroker.client import (
    Client,
    InvalidTxnStatus,
    Producer,
    ProducerFenced,
    Timeout,
    TransactionConflict,
)

TOPICS: Final = ("session-a", "session-b", "session-c")
LIVES_S: Final = 0.3
VALUES_OF_ONE: Final = 1_000_000


@dataclass(slots=True)
class Promises:
    """The promises about one topic. Values in neither set may or may not be stored."""

    stored: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)


class Sessions:
    def __init__(self, service_url: str) -> None:
        self._service_url = service_url
        self._promises = {topic: Promises() for topic in TOPICS}
        self._zombies: list[threading.Thread] = []
        self.broken: list[str] = []
        self.count = 0

    def work(self, client: Client, progress: Progress, books: Books) -> None:
        """Begin one session after the other; at the end all but the last have learned that they
        were fenced.
        """
        replaced = threading.Event()
        while not progress.stopping:
            self.count += 1
            own = Client(self._service_url, enable_transaction=True, transactional_id="sessions")
            producers = [_granted(own, TOPICS[0])]
            replaced.set()  # the previous session
            replaced = threading.Event()
            producers += [_granted(own, topic) for topic in TOPICS[1:]]
            session = _Session(self, self.count, own, producers, replaced, progress)
            self._zombies.append(start_worker(f"session {self.count}", progress, session.run))
            progress.made("sessions")
            time.sleep(LIVES_S)
        for zombie in self._zombies:
            zombie.join(STALLED_AFTER_S)
            if zombie.is_alive():
                raise RuntimeError(f"{zombie.name} has not heard that it was fenced")

    def stored(self, topic: str, value: int) -> None:
        self._promises[topic].stored.add(value)

    def never(self, topic: str, value: int) -> None:
        self._promises[topic].never.add(value)

    def faults_in(self, client: Client) -> Iterator[str]:
        yield from self.broken
        for topic, promises in self._promises.items():
            found = read_all(client, topic)
            sessions = [value // VALUES_OF_ONE for value in found]
            if sessions != sorted(sessions):
                yield f"{topic} has messages of an older session after those of a newer one"
            unknown = set(found) - promises.stored - promises.never
            yield from compare(topic, found, promises.stored | unknown, promises.never)


class _Session:
    def __init__(
        self,
        sessions: Sessions,
        number: int,
        client: Client,
        producers: list[Producer],
        replaced: threading.Event,
        progress: Progress,
    ) -> None:
        self._sessions = sessions
        self._name = f"session {number}"
        self._client = client
        self._producers = dict(zip(TOPICS, producers, strict=True))
        self._replaced = replaced
        self._progress = progress
        self._next = number * VALUES_OF_ONE

    def run(self) -> None:
        while not self._progress.stopping or self._replaced.is_set():
            try:
                for topic in TOPICS:
                    self._publish(topic)
                self._transact()
            except ProducerFenced:
                break
            except (*SETBACKS, Timeout):
                continue  # its outcome is unknown
        self._client.close()

    def _value(self) -> int:
        self._next += 1
        return self._next

    def _publish(self, topic: str) -> None:
        value, is_late = self._value(), self._replaced.is_set()
        if is_late:
            self._sessions.never(topic, value)
        self._producers[topic].send(str(value).encode())
        self._done(topic, value, is_late)

    def _done(self, topic: str, value: int, is_late: bool) -> None:
        if is_late:
            self._sessions.broken.append(f"{self._name} published {value} to {topic} as a zombie")
        else:
            self._sessions.stored(topic, value)

    def _transact(self) -> None:
        txn = self._client.new_transaction(timeout_ms=TXN_TIMEOUT_MS)
        value = self._value()
        try:
            for topic in TOPICS:
                self._producers[topic].send(str(value).encode(), txn=txn)
            is_late = self._replaced.is_set()
            commits = end(self._client, txn, commit=True)
        except (*SETBACKS, Timeout, InvalidTxnStatus, TransactionConflict):
            commits, is_late = False, True
            end(self._client, txn, commit=False)
        for topic in TOPICS:
            if commits:
                self._done(topic, value, is_late)
            else:
                self._sessions.never(topic, value)


def _granted(client: Client, topic: str) -> Producer:
    while True:
        try:
            return client.create_producer(topic, send_timeout_millis=0)
        except (*SETBACKS, Timeout):
            continue
