"""Transactional producers of Kafka's protocol, with either version of transactions.

Some share a transactional id: each new one fences the others unnoticed. A worker stalls, leaves
transactions to their timeout, and dies between any two requests. What of its requests was delayed
arrives at any time: with transaction.version 2, a copy of an END may come on another connection
while a later transaction is open. (With version 1 that END would fit: KIP-890 says why.)
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from checks.history import Outcome, Sent, Txn
from sim_broker import BrokerProcess

from clients.kafka_peer import KafkaClient, KafkaGone
from clients.kafka_producing import Batch, KafkaProcess
from clients.kafka_words import (
    AGAIN,
    Key,
    Owner,
    Place,
    add_partition,
    batch_of,
    end,
    init_transactional,
    produce_in,
)
from pybroker.base.names import TxnId
from pybroker.client.errors import PulsarException
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.transactions.values import ProducerKey
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId

_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# The transaction is over, and was aborted.
_ABORTED: Final = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)
_ATTEMPTS: Final = 4  # to send a batch, before the transaction is given up
_SURELY_IN_TIME: Final = 0.8  # of a timeout


class Fenced(PulsarException):
    """A newer producer has begun, or the transaction has timed out: begin again."""


class GivenUp(PulsarException):
    """The transaction cannot go on: it has to be aborted."""


def stored_producer(broker: BrokerProcess, transactional_id: str, key: Key) -> Any:
    """What the broker knows of the producer; None if it is down, or if another one is newest."""
    if not broker.serving or broker.broker is None:
        return None
    live = broker.broker._kafka.services.transactions._live  # type: ignore[union-attr]
    found = live.get(TransactionalId(None, transactional_id))
    stored = None if found is None else found[1].stored
    return stored if stored is not None and stored.key == ProducerKey(*key) else None


class KafkaWorker(KafkaProcess):
    """Publishes in transactions. `hear` records an epoch of the transactional id, and says whether
    it is the newest. `others_end`: other clients may end its transactions.
    """

    def __init__(
        self,
        *args: Any,
        transactional_id: str,
        places: list[Place],
        count: int,
        newer: bool,
        records: int,
        broker: BrokerProcess,
        hear: Callable[[str, int, str], bool],
        about_to: Callable[[str], None],
        others_end: bool,
    ) -> None:
        super().__init__(*args)
        self.transactional_id = transactional_id
        self.places = places
        self.left = count
        self.newer = newer
        self.records = records
        self.broker = broker
        self.hear = hear
        self.about_to = about_to
        self.others_end = others_end
        self.stored: list[tuple[Place, Batch]] = []  # with the offsets that the broker said
        self.timeout_ms = 60_000
        self.is_refused = False  # by a policy: the broker keeps transactions aside
        self._key: Key
        self._sequences: dict[Place, int] = {}
        self._numbers = dict.fromkeys(places, 0)
        self._lives = 0

    @property
    def owner(self) -> Owner:
        return Owner(self.transactional_id, self._key, self.newer)

    async def work(self, client: Any) -> None:
        self.session = None
        self._lives += 1
        await self._init(client)
        while self.left and not self.stopping and not self.is_refused:
            self.left -= 1
            await self._transact(client)
            stalls = self.rng.random() < 0.2
            await self.pause(4.0 if stalls else 0.3)

    # -- who it is

    async def _init(self, client: KafkaClient, former: Key | None = None) -> None:
        self.about_to("InitProducerId")
        self.timeout_ms = self.rng.choice((1000, 5000, 15_000))
        while True:
            found = await init_transactional(client, self.transactional_id, self.timeout_ms, former)
            if isinstance(found, Key):
                break
            self.note(f"InitProducerId: {found.name}")
            if found in _FENCED and former is not None:
                self._fenced(found)
            if found not in AGAIN:
                self.unexpected(found, "InitProducerId")
            await self.pause(1.0)
        self._begin_as(found)
        if former is None:
            self._take_over()

    def _begin_as(self, key: Key) -> None:
        self.note(f"has {key}")
        self._key = key
        self._sequences.clear()

    def _take_over(self) -> None:
        """The session is the newest, as far as the broker says."""
        stored = stored_producer(self.broker, self.transactional_id, self._key)
        life = f"{self.name} {self._lives}"
        if stored is None or not self.hear(self.transactional_id, stored.session_epoch, life):
            raise Fenced("a newer producer has begun meanwhile, or the broker is down")
        self.session = self.history.take_over(self.transactional_id)

    def _fenced(self, code: ErrorCode) -> NoReturn:
        self.history.counts["fenced Kafka producers"] += 1
        raise Fenced(code.name)

    # -- a transaction

    async def _transact(self, client: KafkaClient) -> None:
        name = f"{self.name}.{self.incarnation} {self._lives} {self._key} {self.left}"
        record = self.history.begin(name, None, self.node)
        record.session = self.session
        began_s = self.world.now
        self.note(f"begins {name}, timeout {self.timeout_ms} ms")
        try:
            await self.fill(client, record)
        except GivenUp as error:
            self.note(f"{name} is given up: {error}")
            if not self.is_refused:
                await self._abort_and_go_on(client, record)
            return
        await self.pause(self.rng.choice((0.0, 0.3, 0.3, 2.0)))
        fate = self.rng.choices(("commit", "abort", "abandon"), (75, 17, 8))[0]
        if fate == "commit":
            await self._commit(client, record, began_s)
        elif fate == "abort":
            await self._abort_and_go_on(client, record)
        else:
            await self._init(client, self._key)  # aborts it

    async def fill(self, client: KafkaClient, record: Txn) -> None:
        """The contents of a transaction. Raises GivenUp."""
        added: set[Place] = set()
        for _ in range(self.rng.randint(1, 4)):
            await self.publish(client, record, self.rng.choice(self.places), added)
            await self.pause(0.1)

    async def publish(
        self, client: KafkaClient, record: Txn, place: Place, added: set[Place]
    ) -> None:
        if not self.newer and place not in added:
            await self.until_accepted(client, lambda: self._add(client, place), f"adding {place}")
            added.add(place)
        sent = [self._message(record, place) for _ in range(self.rng.randint(1, self.records))]
        padding = b"|" + bytes(self.rng.choice((0, 10, 700)))
        first = self._sequences.get(place, 0)
        values = [each.value.encode() + padding for each in sent]
        keys = [f"key-{each.number % 3}" for each in sent]
        data = batch_of(values, keys, self._key, first, in_txn=True)
        batch = Batch(first, sent, data)
        await self.until_accepted(client, lambda: self._send(client, place, batch), sent[0].value)
        self._sequences[place] = first + len(sent)
        if record.txn_id is None:
            record.txn_id = self._txn_id()

    def _txn_id(self) -> TxnId | None:
        stored = stored_producer(self.broker, self.transactional_id, self._key)
        return None if stored is None else stored.txn_id

    def _message(self, record: Txn, place: Place) -> Sent:
        number = self._numbers[place] = self._numbers[place] + 1
        sender = f"{self.name}-{place.topic}-{place.partition}"
        life = f"{sender}.{self.incarnation}.{self._lives}"
        sent = Sent(f"{sender}/{number}", place.topic, life, number, True, record)
        sent.session = self.session
        return self.history.send(sent)

    async def _add(self, client: KafkaClient, place: Place) -> ErrorCode:
        return await add_partition(client, self.owner, place)

    async def _send(self, client: KafkaClient, place: Place, batch: Batch) -> ErrorCode:
        for sent in batch.sent:
            sent.asked = sent.asked or self.history.turn()
        code, offset = await produce_in(client, self.owner, place, batch.data)
        if code is ErrorCode.NONE:
            batch.offset = offset
            self.stored.append((place, batch))
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            for sent in batch.sent:
                sent.outcome, sent.answered = Outcome.DONE, self.history.turn()
            return ErrorCode.NONE
        return code

    async def until_accepted(self, client: KafkaClient, ask: Callable[[], Any], what: str) -> None:
        """Raises GivenUp, Fenced."""
        for _ in range(_ATTEMPTS):
            try:
                code = await ask()
            except KafkaGone as error:
                self.note(f"{what}: {error}")
                await self.pause(1.0)
                continue
            if code is ErrorCode.NONE:
                return
            self.note(f"{what}: {code.name}")
            if code is ErrorCode.PRODUCER_FENCED:
                self._fenced(code)
            if code is ErrorCode.POLICY_VIOLATION:
                self.is_refused = True
            if code not in AGAIN:
                raise GivenUp(code.name)
            await self.pause(0.5)
        raise GivenUp("no answer that counts")

    # -- its end

    async def _commit(self, client: KafkaClient, record: Txn, began_s: float) -> None:
        record.commit, record.commit_asked = Outcome.UNKNOWN, self.history.turn()
        self.about_to("EndTxn")
        owner = self.owner
        code, was_asked = await self._end(client, owner, True)
        self.note(f"commit of {record.name}: {code.name}")
        if code is ErrorCode.NONE:
            record.commit, record.commit_heard = Outcome.DONE, self.history.turn()
            self._maybe_late(owner, record)
            return
        if code in _ABORTED or was_asked == 1:
            record.commit = Outcome.REFUSED
        age_s = self.world.now - began_s
        in_time = age_s < _SURELY_IN_TIME * self.timeout_ms / 1000
        # A restart reckons a transaction's age by the wall clock.
        in_time &= self.history.clock_set_s < began_s
        if code in _ABORTED and in_time and not self._may_be_aborted:
            self.history.failures.append(
                f"NEEDLESS ABORT: {record.name}, {age_s:.3f} s old: {code.name}"
            )
        if code in _FENCED:
            self._fenced(code)
        await self._abort_and_go_on(client, record)

    @property
    def _may_be_aborted(self) -> bool:
        return self.others_end or self.session is None or self.session.fenced is not None

    async def _abort_and_go_on(self, client: KafkaClient, record: Txn) -> None:
        """After it no batch of the transaction can arrive any more."""
        owner = self.owner
        if record.commit is None:
            record.abort = Outcome.UNKNOWN
        code, _ = await self._end(client, owner, False)
        self.note(f"abort of {record.name}: {code.name}")
        if code is ErrorCode.NONE and record.commit is None:
            record.abort, record.abort_heard = Outcome.DONE, self.history.turn()
        if code in _FENCED:
            self._fenced(code)
        if code is not ErrorCode.NONE or not self.newer:
            await self._init(client, self._key)
        else:
            self._maybe_late(owner, record)

    async def _end(self, client: KafkaClient, owner: Owner, commit: bool) -> tuple[ErrorCode, int]:
        """The answer, and after how many requests."""
        asked = 0
        while True:
            asked += 1
            try:
                code, key = await end(client, owner, commit)
            except KafkaGone as error:
                self.note(f"END of {owner.key}: {error}")
                await self.pause(1.0)
                continue
            if code in AGAIN:
                self.note(f"END of {owner.key}: {code.name}")
                await self.pause(1.0)
                continue
            if code is ErrorCode.NONE and key != owner.key:
                self._begin_as(key)
            elif code not in (*_ABORTED, *_FENCED, ErrorCode.NONE):
                self.unexpected(code, "EndTxn")
            return code, asked

    def _maybe_late(self, owner: Owner, record: Txn) -> None:
        if self.newer and self.rng.random() < 0.5:
            assert self.node is not None
            self.node.create_task(self._late_end(owner, record), name="a late END")

    async def _late_end(self, owner: Owner, record: Txn) -> None:
        """A copy of the END that was delayed on another connection; sometimes of the other end."""
        await self.pause(1.0)
        commits = record.committed is (self.rng.random() < 0.8)
        client = KafkaClient()
        try:
            code, _ = await end(client, owner, commits)
        except KafkaGone:
            return
        finally:
            await client.close()
        self.history.counts["late ENDs"] += 1
        self.note(f"late {'commit' if commits else 'abort'} of {record.name}: {code.name}")
        if code is ErrorCode.NONE and commits is not record.committed:
            self.history.failures.append(f"CONTRADICTION: {record.name} got both ends, one late")
