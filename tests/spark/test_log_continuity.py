"""Checkpoints that are newer than the broker's data, with a broker in this process; no Spark."""

import json
import shutil
import urllib.request
from contextlib import contextmanager

import pytest

from pybroker.base.errors import TopicNotFound
from pybroker.client import Client, InitialPosition
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable
from pybroker.spark.offsets import Position, SourceOffset
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading import stream
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.replay import InputLost
from pybroker.testing import broker

pytestmark = pytest.mark.slow  # restarts brokers

TOPIC = "persistent://public/default/in"
ALL = ReadAllAvailable()
ANOTHER_LOG = "is not as the query left it"


class World:
    """A broker whose data directory can be backed up and restored."""

    def __init__(self, folder):
        self._folder = folder
        self._port = 0

    @contextmanager
    def running(self):
        with broker(
            data_dir=self._folder / "data", http=True, broker_service_port=self._port
        ) as running:
            self.url, self.admin_url = running.service_url, running.admin_url
            self._port = int(running.service_url.rpartition(":")[2])
            yield

    def back_up(self):
        shutil.copytree(self._folder / "data", self._folder / "backup")

    def restore(self):
        shutil.rmtree(self._folder / "data")
        shutil.copytree(self._folder / "backup", self._folder / "data")

    def send(self, count, topic=TOPIC):
        with Client(self.url) as client:
            producer = client.create_producer(topic)
            for _ in range(count):
                producer.send(b"v")

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"null")

    def is_there(self, topic=TOPIC):
        return topic in self.call("GET", "persistent/public/default")

    def cursor(self, subscription, topic=TOPIC):
        with Client(self.url) as client:
            consumer = client.subscribe(
                topic, subscription, initial_position=InitialPosition.Earliest
            )
            found = consumer.get_mark_delete_position()
            consumer.close()
        return Position(found.ledger_id(), found.entry_id())

    @contextmanager
    def run(self, **options):
        """The source in one run of the query."""
        given = {"service.url": self.url, "topic": TOPIC, "subscription": "s"} | options
        given = {name: value for name, value in given.items() if value is not None}
        reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
        try:
            yield reader
        finally:
            reader.stop()

    def planned(self, start=None, **options):
        """The end of the batch that a new run plans after `start`, without moving the cursor."""
        with self.run(**options) as reader:
            return as_spark_keeps_it(reader.latestOffset(start or reader.initialOffset(), ALL))


def as_spark_keeps_it(offset):
    return json.loads(json.dumps(offset))


def span(offset, topic=TOPIC):
    return SourceOffset.from_json(offset).spans[topic]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def ahead(world):
    """The offset of a checkpoint that has read 100 messages more than the backup has."""
    with world.running():
        world.send(100)
        at_backup = world.planned()
    world.back_up()
    with world.running():
        world.send(100)
        offset = world.planned(at_backup)
    world.restore()
    return offset


# --- an older backup -----------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 50, 101, 300])
def test_after_an_older_backup_a_stream_does_not_wait_in_silence_nor_miss_what_is_new(
    world, ahead, sent
):
    """50: the log is shorter than the checkpoint expects; 101: it has other messages there."""
    with world.running():
        world.send(sent)
        with pytest.raises(InputLost, match=ANOTHER_LOG):
            world.planned(ahead)


def test_after_an_older_backup_a_place_may_be_missing_within_the_log(world, ahead):
    with world.running():
        for number in range(3):
            world.send(1, f"persistent://public/default/other{number}")
        world.send(10)
    for _ in range(3):  # Each start creates a ledger.
        with world.running():
            world.send(10)
    with world.running(), pytest.raises(InputLost, match=ANOTHER_LOG):
        world.planned(ahead)


def test_an_older_backup_under_a_running_stream_is_noticed(world):
    with world.running():
        world.send(100)
    world.back_up()
    with world.running():
        world.send(100)
        source = world.run()
        reader = source.__enter__()
        offset = reader.latestOffset(reader.initialOffset(), ALL)
    world.restore()
    with world.running():
        world.send(300)
        with pytest.raises(InputLost, match=ANOTHER_LOG):
            reader.latestOffset(as_spark_keeps_it(offset), ALL)
        source.__exit__(None, None, None)


@pytest.mark.parametrize("sent", [0, 50, 300])
def test_with_data_loss_a_stream_goes_on_at_the_cursor_of_the_backup(world, ahead, caplog, sent):
    with world.running():
        world.send(sent)
        cursor = world.cursor("s")
        offset = world.planned(ahead, failOnDataLoss="false")
        assert span(offset).after == cursor
        assert len(list(_positions(world, cursor))) == 100 + sent
        assert "continuing at the query's cursor" in caplog.text


def _positions(world, after):
    with Client(world.url) as client:
        reader = stream.Session(client).read_to_end(TOPIC, after)
        yield from (position for position, _ in reader)


def test_what_retention_has_trimmed_is_no_other_log(world):
    with world.running():
        world.send(100)
        offset = world.planned()
        world.call("DELETE", "persistent/public/default/in/truncate")
        assert world.planned(offset) == offset
        world.send(10)
        after = world.planned(offset)
        assert span(after).after == span(offset).to
    with world.running():
        assert world.planned(after) == after
        world.send(10)
        assert span(world.planned(after)).after == span(after).to


def test_a_cursor_behind_markers_is_in_no_other_log(world):
    with world.running():
        world.send(10)
        with Client(world.url, enable_transaction=True) as client:
            txn = client.new_transaction()
            client.create_producer(TOPIC).send(b"aborted", txn=txn)
            txn.abort()
        offset = world.planned(startingOffsets="latest")
        start = {**offset, "spans": {TOPIC: {"after": "0:30", "to": str(world.cursor("s"))}}}
        assert world.planned(start) == start
        world.send(1)
        assert span(world.planned(start)).to > span(start).to


def test_a_checkpoint_of_an_earlier_version_goes_on(world):
    with world.running():
        world.send(10)
        offset = world.planned()
        assert offset["spans"][TOPIC].pop("published")
        world.send(10)
        assert span(world.planned(offset)).after == span(offset).to


# --- a deleted topic -----------------------------------------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_was_deleted_between_runs_is_not_made_anew_but_missed(
    world, available_now, partitions
):
    with world.running():
        if partitions:
            world.call("PUT", "persistent/public/default/in/partitions", partitions)
        world.send(10)
        offset = world.planned()
        world.send(10)
        path = "persistent/public/default/in" + ("/partitions" if partitions else "")
        world.call("DELETE", f"{path}?force=true")
        for _ in range(2):
            with world.run() as reader:
                if available_now:
                    reader.prepareForTriggerAvailableNow()
                with pytest.raises(InputLost, match="which the query has been reading, is gone"):
                    reader.latestOffset(offset, ALL)
            assert world.call("GET", "persistent/public/default") == []


@pytest.mark.parametrize("kind", ["subscription", "predefinedSubscription"])
def test_a_topic_that_is_deleted_under_a_running_stream_is_missed(world, kind):
    options = {"subscription": None, kind: "s", "startingOffsets": "earliest"}
    with world.running():
        world.send(10)
        with world.run(**options) as reader:
            offset = as_spark_keeps_it(reader.latestOffset(reader.initialOffset(), ALL))
            assert reader.latestOffset(offset, ALL) == offset  # moves the cursor
            world.call("DELETE", "persistent/public/default/in?force=true")
            with pytest.raises(InputLost, match="is gone"):
                reader.latestOffset(offset, ALL)
            assert not world.is_there()


def test_a_task_does_not_make_a_topic_anew_that_was_deleted_before_it_read(world):
    with world.running():
        world.send(10)
        with world.run() as reader:
            start = reader.initialOffset()
            [task] = reader.partitions(start, reader.latestOffset(start, ALL))
            world.call("DELETE", "persistent/public/default/in?force=true")
            with pytest.raises(InputLost, match="were deleted before the batch was read"):
                list(reader.read(task))
        assert not world.is_there()


def test_without_the_deleted_topic_a_stream_goes_on_if_it_may(world, caplog):
    with world.running():
        world.send(10)
        offset = world.planned()
        world.call("DELETE", "persistent/public/default/in?force=true")
        with world.run(failOnDataLoss="false") as reader:
            reader.latestOffset(offset, ALL)
        assert "continuing without it" in caplog.text
        assert not world.is_there()


def test_a_new_query_makes_its_topic_where_brokers_do_so(world):
    with world.running(), world.run() as reader:
        reader.prepareForTriggerAvailableNow()
        assert span(reader.initialOffset()).is_empty
        assert world.is_there()


def test_a_new_query_without_its_topic_fails_where_brokers_make_none(tmp_path):
    with (
        broker(allow_auto_topic_creation=False) as running,
        pytest.raises(TopicNotFound),
    ):
        given = {"service.url": running.service_url, "topic": TOPIC, "subscription": "s"}
        reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
        try:
            reader.prepareForTriggerAvailableNow()
            reader.initialOffset()
        finally:
            reader.stop()


def test_without_the_deleted_topic_a_stream_reads_it_when_it_comes_again(world):
    options = {"predefinedSubscription": "s", "startingOffsets": "earliest"}
    with world.running():
        world.send(10)
        with world.run(subscription=None, failOnDataLoss="false", **options) as reader:
            offset = as_spark_keeps_it(reader.latestOffset(reader.initialOffset(), ALL))
            assert reader.latestOffset(offset, ALL) == offset
            world.call("DELETE", "persistent/public/default/in?force=true")
            gone = as_spark_keeps_it(reader.latestOffset(offset, ALL))
            world.send(3)
            again = as_spark_keeps_it(reader.latestOffset(gone, ALL))
            assert span(again).to.entry_id == 2
            world.send(3)
            assert span(reader.latestOffset(again, ALL)).to.entry_id == 5


# --- the cursor follows --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["subscription", "predefinedSubscription"])
def test_the_cursor_stands_behind_what_spark_has_finished_when_a_run_ends(world, kind):
    """So the loss of a checkpoint after that causes no duplicates, with any sink."""
    options = {"subscription": None, kind: "s", "startingOffsets": "earliest"}
    with world.running():
        world.send(10)
        with world.run(**options) as reader:
            reader.prepareForTriggerAvailableNow()
            end = as_spark_keeps_it(reader.latestOffset(reader.initialOffset(), ALL))
            assert reader.latestOffset(end, ALL) == end
        assert world.cursor("s") == span(end).to
        world.send(5)
        again = world.planned(**options)  # without the checkpoint
        assert span(again).after == span(end).to


def test_a_cursor_that_a_sink_moves_is_left_to_it(world, monkeypatch):
    calls = []
    with world.running():
        world.send(10)
        with world.run() as reader:
            end = as_spark_keeps_it(reader.latestOffset(reader.initialOffset(), ALL))
            with Client(world.url, enable_transaction=True) as client:
                session = stream.Session(client)
                txn = client.new_transaction()
                [(name, planned)] = SourceOffset.from_json(end).progress().items()
                session.acknowledge(name, planned.to, txn)
                txn.commit()
            monkeypatch.setattr(
                stream.Session,
                "acknowledge_up_to",
                lambda session, *what: calls.append(what),
            )
            for _ in range(3):
                world.send(1)
                end = as_spark_keeps_it(reader.latestOffset(end, ALL))
    assert calls == []


def test_a_cursor_that_was_reset_is_set_to_what_spark_has_finished(world):
    """The query's subscription was deleted; its published rows are not published again."""
    with world.running():
        world.send(10)
        offset = world.planned()
        with Client(world.url) as client:
            client.subscribe(TOPIC, "s").unsubscribe()
        world.send(10)
        assert span(world.planned(offset)).after == span(offset).to
        assert world.cursor("s") == span(offset).to
