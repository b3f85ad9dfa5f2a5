"""Transactions that a sink's dead driver leaves open at a real broker."""

from functools import partial

import pytest

from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TopicName
from pybroker.client import Client, EncodedBatch, InitialPosition, MessageId, encode_batch
from pybroker.spark.chain import Chain
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import Job, write
from pybroker.spark.writing.batch_end import BatchEnd
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.job_end import JobEnd
from pybroker.spark.writing.notes import NoteBook
from pybroker.testing import broker

OUT, CONTROL = "persistent://public/default/out", "persistent://public/default/control"
TIMEOUT_MS = 60_000


def test_what_nobody_ends_hides_messages_until_its_timeout_and_no_longer(pulsar_broker):
    connect = partial(Client, pulsar_broker.service_url, enable_transaction=True)
    with connect() as client:
        consumer = client.subscribe(OUT, "s", initial_position=InitialPosition.Earliest)
        of_driver = client.new_transaction(TIMEOUT_MS)
        notes = NoteBook(CONTROL, "query", 0)
        job = Job(connect, of_driver.txn_id, notes, TIMEOUT_MS, max_driver_bytes=1)
        written = write(job, [Destined(0, OUT, EncodedBatch(b"of nobody", 1, 1))])
        client.create_producer(OUT).send(b"behind it")
        pulsar_broker.clock.advance("61s")
        assert consumer.receive(60_000).data() == b"behind it"
        assert written.txn_id is not None


def test_what_tasks_leave_open_is_ended_where_topics_are_made_with_partitions():
    """The control topic is partitioned, too: its notes and markers are on the same partition."""
    with broker(allow_auto_topic_creation_type="partitioned", default_num_partitions=3) as running:
        connect = partial(Client, running.service_url, enable_transaction=True)
        with connect() as client:
            consumer = client.subscribe(OUT, "s", initial_position=InitialPosition.Earliest)
            out = client.get_topic_partitions(OUT)[0]
            of_driver = client.new_transaction(60_000)
            job = Job(connect, of_driver.txn_id, NoteBook(CONTROL, "query"), 60_000, 1)
            given_up, accepted = (
                write(job, [Destined(0, out, encode_batch([content]))])
                for content in (b"of nobody", b"accepted")
            )
            BatchEnd(job, Chain(CONTROL, "query"), Work("query", 0, {}), [accepted]).commit()
            client.create_producer(out).send(b"behind both")
            assert [consumer.receive(60_000).data() for _ in range(2)] == [
                b"accepted",
                b"behind both",
            ]
            assert given_up.txn_id not in (None, accepted.txn_id)


@pytest.mark.parametrize("created", ["__spark-jobs", "spark-jobs"])
def test_jobs_are_noted_where_a_broker_creates_no_topics_and_one_of_the_names_exists(created):
    with broker(allow_auto_topic_creation=False) as running:
        connect = partial(Client, running.service_url, enable_transaction=True)
        topic, former, there = (
            f"persistent://public/default/{name}"
            for name in ("__spark-jobs", "spark-jobs", created)
        )
        for name in map(TopicName.parse, (there, OUT)):
            running.call(lambda served, name=name: served.topics.create(name))
        with connect() as client:
            job_id = client.new_transaction(TIMEOUT_MS).txn_id
            notes = NoteBook.of_job(topic, "job", former)
            job = Job(connect, job_id, notes, TIMEOUT_MS, max_driver_bytes=1)
            killed, accepted = (
                write(job, [Destined(0, OUT, encode_batch([content]))])
                for content in (b"of nobody", b"accepted")
            )
            JobEnd(job, [accepted]).commit()
            reader = client.create_reader(OUT, MessageId.earliest)
            assert reader.read_next(60_000).data() == b"accepted"
            with pytest.raises(InvalidTxnStatus):
                client.attach_transaction(killed.txn_id).commit()
