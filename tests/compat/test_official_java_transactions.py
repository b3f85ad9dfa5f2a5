"""The official Java client's transactions against a broker process that can be killed."""

import os
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import httpx
import pytest
from official_java import NOTHING_S, OfficialClient, java_gateway
from py4j.protocol import Py4JJavaError

from pybroker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.java, pytest.mark.feature("transactions")]

INPUTS = ("java-in-1", "java-in-2")
OUTPUTS = ("java-out-1", "java-out-2", "java-out-3")
STUCK_BROKER = Path(__file__).with_name("broker_stuck_in_committing.py")


@pytest.fixture(scope="module")
def gateway() -> Iterator[object]:
    with java_gateway() as gateway:
        yield gateway


@pytest.fixture
def options() -> list[str]:
    """More options of the broker."""
    return []


@pytest.fixture(params=["logOrder", "commitOrder"])
def broker(
    tmp_path: Path, request: pytest.FixtureRequest, options: list[str]
) -> Iterator[BrokerProcess]:
    config = tmp_path / "ordered.conf"
    config.write_text(f"transactionBuffer={request.param}")
    with BrokerProcess(tmp_path / "data", ["--config", str(config), *options]) as broker:
        yield broker


class Pipeline:
    """Two inputs with one received but unacknowledged message each, and three outputs."""

    def __init__(self, gateway: object, broker: BrokerProcess) -> None:
        self.official = OfficialClient(gateway, broker.service_url)
        self.sources = [self.official.consumer(topic, "worker") for topic in INPUTS]
        self.sinks = [self.official.consumer(topic, "auditor") for topic in OUTPUTS]
        self.producers = [self.official.producer(topic) for topic in OUTPUTS]
        for topic in INPUTS:
            self.official.producer(topic).send(topic.encode())
        self.received = [self.official.receive(source) for source in self.sources]

    def work_in(self, txn: object, outputs: slice = slice(None)) -> None:
        for source, message in zip(self.sources, self.received, strict=True):
            source.acknowledgeAsync(message.getMessageId(), txn).get()
        self.publish(txn, outputs)

    def publish(self, txn: object, outputs: slice = slice(None)) -> None:
        for producer in self.producers[outputs]:
            producer.newMessage(txn).value(b"result").send()

    def visible_outputs(self) -> list[bytes]:
        messages = [self.official.receive(sink) for sink in self.sinks]
        return [message.getData() for message in messages if message is not None]

    def nothing_visible(self) -> bool:
        return all(self.official.receive(sink, NOTHING_S) is None for sink in self.sinks)

    def redelivered_inputs(self, timeout_s: int) -> list[bytes]:
        """The messages that new consumers receive from the inputs' subscriptions."""
        for source in self.sources:
            source.close()
        sources = [self.official.consumer(topic, "worker") for topic in INPUTS]
        messages = [self.official.receive(source, timeout_s) for source in sources]
        return [message.getData() for message in messages if message is not None]


@pytest.fixture
def pipeline(gateway: object, broker: BrokerProcess) -> Iterator[Pipeline]:
    pipeline = Pipeline(gateway, broker)
    yield pipeline
    pipeline.official.shutdown()


def test_three_topics_and_two_subscriptions_commit_together(pipeline):
    txn = pipeline.official.transaction()
    pipeline.work_in(txn)
    assert pipeline.nothing_visible()
    txn.commit().get()
    assert pipeline.visible_outputs() == [b"result"] * 3
    assert pipeline.redelivered_inputs(NOTHING_S) == []


def test_an_aborted_transaction_shows_nothing_and_gives_its_inputs_back(pipeline):
    txn = pipeline.official.transaction()
    pipeline.work_in(txn)
    txn.abort().get()
    assert pipeline.nothing_visible()
    assert pipeline.redelivered_inputs(20) == [b"java-in-1", b"java-in-2"]


@pytest.mark.parametrize("options", [["--test-mode"]], ids=["test mode"])
def test_a_transaction_that_times_out_is_aborted_and_cannot_commit(pipeline, broker):
    txn = pipeline.official.transaction()
    pipeline.work_in(txn)
    advance = f"{broker.admin_url}/admin/v3/clock/advance"
    httpx.post(advance, json={"by": "61s"}).raise_for_status()
    assert pipeline.redelivered_inputs(20) == [b"java-in-1", b"java-in-2"]
    with pytest.raises(Py4JJavaError):
        txn.commit().get()
    assert pipeline.nothing_visible()


@pytest.mark.feature("broker restarts")
def test_an_open_transaction_goes_on_after_the_broker_was_killed(pipeline, broker):
    txn = pipeline.official.transaction()
    pipeline.work_in(txn, slice(0, 2))
    broker.kill()
    broker.start()
    pipeline.publish(txn, slice(2, 3))
    assert pipeline.nothing_visible()
    txn.commit().get()
    assert pipeline.visible_outputs() == [b"result"] * 3
    assert pipeline.redelivered_inputs(NOTHING_S) == []


def test_a_broker_killed_while_committing_completes_the_commit_unaided(
    gateway, pipeline, broker, tmp_path
):
    pipeline.official.shutdown()
    broker.kill()
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    healthy = broker.program
    broker.program = [sys.executable, str(STUCK_BROKER), str(stuck)]
    broker.start()
    official = OfficialClient(gateway, broker.service_url)
    txn = official.transaction()
    for topic in OUTPUTS:
        official.producer(topic).newMessage(txn).value(b"result").send()
    txn.commit()
    assert stuck.read_text().startswith("stuck")
    official.shutdown()
    broker.kill()
    broker.program = healthy
    broker.start()
    witness = OfficialClient(gateway, broker.service_url)
    sinks = [witness.consumer(topic, "auditor") for topic in OUTPUTS]
    assert [witness.receive(sink).getData() for sink in sinks] == [b"result"] * 3
    witness.shutdown()


class Copier:
    """Copies INPUTS[0] to OUTPUTS[0] in transactions of ten messages. In every third transaction
    the broker is killed at one of the stages.
    """

    STAGES = ("published", "acknowledged", "committing")

    def __init__(self, official: OfficialClient, broker: BrokerProcess) -> None:
        self._official = official
        self._broker = broker
        self._source = official.consumer(INPUTS[0], "worker", "Shared")
        self._sink = official.producer(OUTPUTS[0])
        self.kills = 0

    def run(self, messages: int) -> None:
        copied, numbers = 0, count()
        while copied < messages:
            number = next(numbers)
            stage = self.STAGES[number // 3 % len(self.STAGES)]
            batch = self._next_ten()
            if self._copy(batch, stage if number % 3 == 0 else None):
                copied += len(batch)

    def _next_ten(self) -> list[object]:
        first = self._official.receive(self._source)
        assert first is not None, "the rest of the inputs never came"
        others = iter(lambda: self._official.receive(self._source, NOTHING_S), None)
        return [first, *islice(others, 9)]

    def _copy(self, batch: list[object], stage: str | None) -> bool:
        """Copy a batch; False if the transaction was aborted."""
        txn = self._official.transaction()
        try:
            answers = [self._publish(message, txn) for message in batch]
            self._kill_if(stage == "published")
            answers += [self._acknowledge(message, txn) for message in batch]
            self._kill_if(stage == "acknowledged")
            for answer in answers:
                answer.get()
            committed = txn.commit()
            self._kill_if(stage == "committing")
            committed.get()
        except Py4JJavaError:
            return not self._give_up(txn)
        return True

    def _publish(self, message: object, txn: object) -> object:
        return self._sink.newMessage(txn).value(message.getData()).sendAsync()

    def _acknowledge(self, message: object, txn: object) -> object:
        return self._source.acknowledgeAsync(message.getMessageId(), txn)

    def _give_up(self, txn: object) -> bool:
        """Abort; False if the transaction was committed and only the answer was lost."""
        try:
            txn.abort().get()
        except Py4JJavaError:
            return False
        self._source.redeliverUnacknowledgedMessages()
        return True

    def _kill_if(self, due: bool) -> None:
        if due:
            self._broker.kill()
            self._broker.start()
            self.kills += 1


def test_each_message_is_copied_once_though_the_broker_is_killed(gateway, tmp_path):
    """Deduplication is on, because the client resends unanswered messages.

    The result is read at the end: a consumer that survives a restart may receive messages in flight
    twice.
    """
    config = tmp_path / "broker.conf"
    config.write_text("brokerDeduplicationEnabled=true")
    values = [b"%d" % number for number in range(300)]
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        official = OfficialClient(gateway, broker.service_url)
        official.consumer(OUTPUTS[0], "auditor").close()
        copier = Copier(official, broker)
        inputs = official.producer(INPUTS[0])
        for value in values:
            inputs.sendAsync(value)
        inputs.flush()
        copier.run(len(values))
        assert copier.kills >= 10
        auditor = official.consumer(OUTPUTS[0], "auditor")
        copies = islice(iter(lambda: official.receive(auditor), None), len(values))
        assert sorted((copy.getData() for copy in copies), key=int) == values
        assert official.receive(auditor, NOTHING_S) is None
        official.shutdown()
