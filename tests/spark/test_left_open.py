"""What a sink's dead driver leaves open at a real broker."""

from functools import partial

from pybroker.client import Client, EncodedBatch, InitialPosition
from pybroker.spark.writing.attempt import Job, write
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.notes import NoteBook

OUT, CONTROL = "persistent://public/default/out", "persistent://public/default/control"
TIMEOUT_MS = 1000


def test_what_nobody_ends_hides_messages_until_its_timeout_and_no_longer(pulsar_broker):
    connect = partial(Client, pulsar_broker.service_url, enable_transaction=True)
    with connect() as client:
        consumer = client.subscribe(OUT, "s", initial_position=InitialPosition.Earliest)
        of_driver = client.new_transaction(TIMEOUT_MS)
        notes = NoteBook(CONTROL, "query", 0)
        job = Job(connect, of_driver.txn_id, notes, TIMEOUT_MS, max_driver_bytes=1)
        written = write(job, [Destined(0, OUT, EncodedBatch(b"of nobody", 1, 1))])
        client.create_producer(OUT).send(b"behind it")
        assert consumer.receive(60_000).data() == b"behind it"
        assert written.txn_id is not None
