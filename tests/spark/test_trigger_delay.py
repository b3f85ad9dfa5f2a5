"""When a batch is worth its cost; under a virtual clock."""

import pytest

from pybroker.base.errors import NotAllowed
from pybroker.spark.offsets import Position
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.delay import Delay
from pybroker.spark.reading.limits import Sample
from pybroker.spark.reading.survey import Behind

STARTS = {"a": Position(1, 1), "b": Position(1, 1), "c": Position(1, 1)}


class Topics:
    """Two topics with `entries` of two rows each, and one that is empty."""

    def __init__(self, entries):
        self.entries = entries

    def behind(self, after):
        return {t: Behind(Position(9, 9), 0 if t == "c" else self.entries) for t in after}

    def samples(self, after):
        assert "c" not in after
        return {"a": Sample(2.0, 10.0), "b": Sample(2.0, 10.0)}


class Query:
    def __init__(self, least_rows, most_s=60.0):
        self.now_s = 0.0
        self.delay = Delay(least_rows, most_s, lambda: self.now_s)
        self.delay.planned()

    def holds_back(self, entries):
        return self.delay.holds_back(Topics(entries), STARTS)


def test_too_few_rows_wait_for_more():
    query = Query(least_rows=20)
    assert query.holds_back(4)
    assert not query.holds_back(5)


def test_too_few_rows_do_not_wait_for_ever():
    query = Query(least_rows=20)
    query.now_s = 59.0
    assert query.holds_back(1)
    query.now_s = 60.0
    assert not query.holds_back(1)
    query.delay.planned()
    assert query.holds_back(1)


def test_the_first_batch_and_queries_without_the_option_never_wait():
    assert not Delay(20, 60.0).holds_back(Topics(1), STARTS)
    assert not Query(None).holds_back(1)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("30s", 30_000), ("500ms", 500), ("2 h", 7_200_000), ("1000", 1000)],
)
def test_a_delay_is_written_as_in_spark(text, ms):
    given = {"service.url": "pulsar://a", "maxTriggerDelay": text}
    assert chosen(given, Mode.READ_STREAM)["maxTriggerDelay"] == ms


@pytest.mark.parametrize("text", ["", "0s", "soon", "1 week", "-5s"])
def test_another_delay_is_refused_with_an_example(text):
    with pytest.raises(NotAllowed, match="a duration above 0, such as 15m"):
        chosen({"service.url": "pulsar://a", "maxTriggerDelay": text}, Mode.READ_STREAM)
