"""The driver side of exactly_once, on a broker in a dictionary."""

from unittest.mock import MagicMock

from spark_fakes import FakeBroker, FakeCheckpoint, FakeClient

from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position, Span
from pybroker.spark.transactional import ExactlyOnce, Options
from pybroker.spark.work import Work

TOPIC = "persistent://public/default/transfers"
CONTROL = "persistent://public/default/control"
CURSOR = CursorName(TOPIC, "ledger")
REPLAY = (TOPIC, "ledger-replay")
CHAIN = (CONTROL, "query-query")


def work_of(batch_id, after, to):
    return Work("query", batch_id, {CURSOR: Span(Position(1, after), Position(1, to))}, "digest")


WORK = work_of(3, 4, 9)
NEXT = work_of(4, 9, 12)


def broker_at(place):
    broker = FakeBroker(cursors={CURSOR: place})
    broker.store(TOPIC, *[b"transfer"] * 20)
    return broker


class Driver:
    """A driver process with its own sink; the broker and the checkpoint may survive it."""

    def __init__(self, broker=None, checkpoint=None, patience_s=10.0):
        self.broker = broker or broker_at(4)
        self.checkpoint = checkpoint or FakeCheckpoint()
        self.batch = MagicMock()
        self.now_s = 0.0
        self.steps = []
        self.sink = ExactlyOnce(
            self._write,
            Options(
                "pulsar://fake",
                "/checkpoint",
                CONTROL,
                patience_s=patience_s,
                on_step=lambda step, work: self.steps.append(step),
                connect=lambda url: FakeClient(self.broker),
                pause=self._pause,
                clock=lambda: self.now_s,
            ),
        )

    def _write(self, batch, batch_id):
        self.broker.act("write", lambda: None)
        return {}

    def _pause(self, seconds):
        self.now_s += seconds

    def process(self, work=WORK):
        self.sink.process(self.batch, work, self.checkpoint)

    @property
    def markers(self):
        """The markers of batches."""
        published = [data for data in self.broker.published(CONTROL) if b"txn_id" in data]
        markers = map(Marker.from_bytes, published)
        return [marker for marker in markers if not marker.is_opening]
