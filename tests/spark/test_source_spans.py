from unittest.mock import MagicMock

import pytest

from pybroker.base.errors import NotAllowed
from pybroker.client import ConnectError, InitialPosition
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable, ReadMaxRows
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, SourceOffset, Span
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading import stream
from pybroker.spark.reading.limits import Sample
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.replay import InputLost

TOPIC = "persistent://public/default/t"
PARTITIONS = [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
BEGINNING = Position(3, -1)
OPTIONS = {"service.url": "pulsar://fake", "topic": "t", "subscription": "s"}


class FakeSession:
    """Two partitions; `visible` are the deliverable entries of the first, the second is empty."""

    asks_about_many = False

    def __init__(self, visible, cursor=BEGINNING):
        self.visible = visible
        self._cursor = cursor
        self.began = {}
        self.entries = {}
        self.incarnation = 1
        # As from a broker that may have been restored from a backup.
        self.published_ms = {}
        self.log_ends_at = Position(1000, 0)

    def partitions(self, topic, create=True):
        return PARTITIONS

    def cursor(self, name, initial_position=None, create=False):
        self.began[name.topic] = initial_position
        return self._cursor

    def last_position(self, topic, create=True):
        return self.visible[-1] if topic == PARTITIONS[0] else Position(-1, -1)

    def release(self, name):
        pass

    def first_position_after(self, topic, position):
        return next((each for each in self.visible if each > position), None)

    def message_from(self, topic, position):
        found = next((each for each in self.visible if each >= position), None)
        return None if found is None else (found, self.published_ms.get(found, 0))

    def log_end(self, topic):
        return self.log_ends_at

    def acknowledge_up_to(self, name, position):
        self._cursor = max(position, self._cursor)

    def sample(self, topic, after):
        return Sample(rows=1, size_bytes=100)

    def backlog(self, name):
        return 0

    def entries_behind(self, topic, position):
        return self.entries[position]

    def reader(self, topic, after, **_):
        return MagicMock(get_backlog=lambda: 0)

    def close(self):
        pass


def reader_of(session, **options):
    given = {name: value for name, value in (OPTIONS | options).items() if value}
    reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
    reader._session = session
    return reader


def ends(offset):
    return [span.to for span in SourceOffset.from_json(offset).spans.values()]


def test_a_new_query_begins_at_the_cursors():
    offset = reader_of(FakeSession([Position(3, 9)], cursor=Position(3, 4))).initialOffset()
    assert ends(offset) == [Position(3, 4)] * 2
    assert SourceOffset.from_json(offset).progress() == {}


def test_a_partition_that_a_topic_grows_is_read_from_its_beginning():
    session = FakeSession([Position(3, 4)])
    reader = reader_of(session, starting_position="latest")
    start = reader.initialOffset()
    assert session.began[PARTITIONS[0]] is InitialPosition.Latest
    del start["spans"][PARTITIONS[0]]
    offset = reader.latestOffset(start, ReadAllAvailable())
    assert session.began[PARTITIONS[0]] is InitialPosition.Earliest
    assert ends(offset)[0] == Position(3, 4)


def test_without_news_the_offset_stays_the_very_same():
    reader = reader_of(FakeSession([Position(3, 4)], cursor=Position(3, 4)))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start


def test_without_a_limit_the_batch_ends_at_the_last_deliverable_message():
    reader = reader_of(FakeSession([Position(3, 0), Position(4, 7)]))
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert ends(offset) == [Position(4, 7), Position(3, -1)]


def test_a_limited_batch_ends_at_a_message_not_at_an_aborted_one():
    visible = [Position(3, 0), Position(3, 6), Position(3, 9)]
    reader = reader_of(FakeSession(visible), max_entries_per_trigger="4")
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    assert ends(offset)[0] == Position(3, 6)


def test_a_limited_batch_gets_over_the_end_of_a_ledger():
    visible = [Position(3, 0), Position(8, 0), Position(8, 1)]
    reader = reader_of(FakeSession(visible, cursor=Position(3, 0)))
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    assert ends(offset)[0] == Position(8, 0)


def test_available_now_stops_where_the_topic_ended_at_the_beginning():
    session = FakeSession([Position(3, 0), Position(3, 5)])
    reader = reader_of(session)
    reader.prepareForTriggerAvailableNow()
    session.visible.append(Position(3, 6))
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert ends(offset)[0] == Position(3, 5)
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset


def test_available_now_without_any_topic_at_the_beginning_reads_none(monkeypatch):
    reader = reader_of(FakeSession([Position(3, 4)]))
    monkeypatch.setattr(FakeSession, "partitions", lambda session, topic, create=True: [])
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    monkeypatch.undo()
    assert reader.latestOffset(start, ReadAllAvailable()) is start


def test_a_task_reads_what_the_end_says():
    before = SourceOffset("s", {PARTITIONS[0]: Span(Position(3, 0), Position(3, 4))})
    after = SourceOffset(
        "s",
        {
            PARTITIONS[0]: Span(Position(3, 4), Position(3, 9)),
            PARTITIONS[1]: Span(Position(7, -1), Position(7, 2)),
        },
    )
    tasks = reader_of(None).partitions(before.to_json(), after.to_json())
    assert [(work.topic, work.span) for task in tasks for work in task.works] == [
        (PARTITIONS[0], Span(Position(3, 4), Position(3, 9))),
        (PARTITIONS[1], Span(Position(7, -1), Position(7, 2))),
    ]
    assert reader_of(None).partitions(after.to_json(), after.to_json()) == []


def test_the_first_batch_reads_the_same_again_though_the_cursor_has_passed_it():
    session = FakeSession([Position(3, 0), Position(3, 5)])
    reader = reader_of(session)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    first = [work.span for task in reader.partitions(start, end) for work in task.works]
    session._cursor = Position(3, 5)
    again = reader.partitions(reader.initialOffset(), end)
    assert [task.works[0].span for task in again] == first == [Span(BEGINNING, Position(3, 5))]


def test_while_the_broker_is_away_the_question_waits(monkeypatch):
    away = MagicMock()
    away.partitions.side_effect = ConnectError("refused")
    monkeypatch.setattr(stream, "PAUSE_S", 0)
    monkeypatch.setattr(Endpoint, "connect", lambda self: None)
    monkeypatch.setattr(stream, "Session", lambda client: FakeSession([Position(3, 1)]))
    assert ends(reader_of(away).initialOffset()) == [Position(3, -1)] * 2
    away.close.assert_called_once()


@pytest.mark.parametrize("missing", ["service.url", "topic"])
def test_a_missing_option_is_named(missing):
    options = {name: value for name, value in OPTIONS.items() if name != missing}
    with pytest.raises(NotAllowed, match=missing):
        PulsarStreamReader(chosen(options, Mode.READ_STREAM), Shape.of(default_schema()))


def test_without_options_a_trigger_is_limited():
    session = FakeSession([Position(3, n) for n in range(5000)])
    session.sample = lambda topic, after: Sample(rows=1000, size_bytes=100_000)
    reader = reader_of(session)
    offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(offset)[0] == Position(3, 999)  # a million rows
    session.sample = lambda topic, after: Sample(rows=1, size_bytes=1024 * 1024)
    offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert ends(offset)[0] == Position(3, 999 + 128)  # 128 MiB
    whole = reader.latestOffset(offset, ReadAllAvailable())
    assert ends(whole)[0] == Position(3, 4999)


def test_an_entry_that_is_larger_than_the_limit_is_read_alone():
    session = FakeSession([Position(3, n) for n in range(5)])
    session.sample = lambda topic, after: Sample(rows=1, size_bytes=5_000_000)
    reader = reader_of(session, maxBytesPerTrigger="1000")
    offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(offset)[0] == Position(3, 0)


def test_before_pyspark_4_2_the_source_remembers_where_it_is():
    session = FakeSession([Position(3, 4)])
    reader = reader_of(session)
    start = reader.initialOffset()
    first = reader.latestOffset()
    session.visible.append(Position(3, 9))
    second = reader.latestOffset()
    spans = [task.works[0].span for task in reader.partitions(start, first)]
    spans += [task.works[0].span for task in reader.partitions(first, second)]
    assert spans == [Span(BEGINNING, Position(3, 4)), Span(Position(3, 4), Position(3, 9))]


def test_before_pyspark_4_2_the_first_batch_of_a_new_run_begins_at_its_start():
    session = FakeSession([Position(3, 4)])
    earlier = reader_of(session)
    earlier.initialOffset()
    start = earlier.latestOffset()
    session.visible.append(Position(3, 9))
    later = reader_of(session)
    end = later.latestOffset()
    [task] = [each for each in later.partitions(start, end) if each.works[0].topic == PARTITIONS[0]]
    assert task.works[0].span == Span(Position(3, 4), Position(3, 9))


def test_before_pyspark_4_2_available_now_asks_once_so_that_all_is_read(monkeypatch):
    monkeypatch.setattr(stream, "LIMITS_TRIGGERS", False)
    session = FakeSession([Position(3, n) for n in range(10)])
    earlier = reader_of(session, maxEntriesPerTrigger="2")
    start = earlier.initialOffset()
    first = earlier.latestOffset()
    assert ends(first)[0] == Position(3, 9)
    session.visible += [Position(3, n) for n in range(10, 20)]
    later = reader_of(session, maxEntriesPerTrigger="2")
    later.partitions(start, first)  # Spark asks for the last batch of the previous run.
    second = later.latestOffset()
    assert ends(second)[0] == Position(3, 19)
    session.visible += [Position(3, n) for n in range(20, 30)]
    assert ends(later.latestOffset())[0] == Position(3, 21)  # With other triggers Spark asks again.


def test_before_pyspark_4_2_a_topic_that_is_gone_or_was_set_back_is_missed_as_well(monkeypatch):
    monkeypatch.setattr(stream, "LIMITS_TRIGGERS", False)
    session = FakeSession([Position(3, n) for n in range(10)])
    start = reader_of(session).latestOffset()
    session.visible = [Position(3, 0), Position(3, 1)]
    session.log_ends_at = Position(3, 1)
    later = reader_of(session)
    with pytest.raises(InputLost, match="ends at 3:1, before 3:9"):
        later.partitions(start, later.latestOffset())
    monkeypatch.setattr(FakeSession, "partitions", lambda session, topic, create=True: [])
    later = reader_of(session)
    with pytest.raises(InputLost, match="is gone"):
        later.partitions(start, later.latestOffset())


def test_a_first_batch_whose_beginning_was_not_told_is_not_read_from_elsewhere(monkeypatch):
    monkeypatch.setattr(stream, "LIMITS_TRIGGERS", True)
    end = {"cursor": "s", "spans": {PARTITIONS[0]: {"to": "3:4"}}}
    start = {"cursor": "s", "spans": {PARTITIONS[0]: {"after": "3:9", "to": "3:9"}}}
    with pytest.raises(InputLost, match="set it back to where it was"):
        reader_of(None).partitions(start, end)


def test_before_pyspark_4_2_a_first_batch_begins_where_its_own_subscription_stands(monkeypatch):
    monkeypatch.setattr(stream, "LIMITS_TRIGGERS", False)
    session = FakeSession([Position(3, 4)])
    first = reader_of(session, subscription="").latestOffset()
    session.visible.append(Position(3, 9))
    places = {first["cursor"]: BEGINNING}  # A new subscription begins at the latest message.
    monkeypatch.setattr(
        FakeSession,
        "cursor",
        lambda session, name, initial=None, create=False: places.get(
            name.subscription, Position(3, 9)
        ),
    )
    monkeypatch.setattr(FakeSession, "delete", lambda session, name: None, raising=False)
    again = reader_of(session, subscription="")
    [task, *_] = again.partitions(again.initialOffset(), first)
    assert task.works[0].span == Span(BEGINNING, Position(3, 4))


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_gone_ends_the_query_unless_data_may_be_lost(caplog, available_now):
    session = FakeSession([Position(3, 4)])
    reader = reader_of(session)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    start["spans"]["persistent://public/default/gone"] = {"after": "1:1", "to": "1:1"}
    with pytest.raises(InputLost, match=r"gone, which the query has been reading, is gone"):
        reader.latestOffset(start, ReadAllAvailable())
    careless = reader_of(session, failOnDataLoss="false")
    assert ends(careless.latestOffset(start, ReadAllAvailable()))[0] == Position(3, 4)
    assert "continuing without it" in caplog.text


def test_a_topic_that_came_when_the_targets_were_set_is_not_gone(monkeypatch):
    reader = reader_of(FakeSession([Position(3, 4)]))
    monkeypatch.setattr(
        FakeSession, "partitions", lambda session, topic, create=True: PARTITIONS[:1]
    )
    reader.prepareForTriggerAvailableNow()
    monkeypatch.undo()
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert list(offset["spans"]) == PARTITIONS[:1]


def test_a_sinks_subscription_begins_at_no_time_or_id():
    with pytest.raises(NotAllowed, match="must be 'earliest' or 'latest'"):
        reader_of(None, startingTime="5")


def test_two_subscriptions_are_refused():
    with pytest.raises(NotAllowed, match="use one of them"):
        reader_of(None, predefinedSubscription="other")


LIMITED = {"max_entries_per_trigger": "2"}


@pytest.mark.parametrize("left", [[], [Position(5, 0)]])
def test_messages_that_vanish_before_a_trigger_reads_them_are_missed(left):
    """A message TTL has taken what a limit left to the next trigger, or the first of it."""
    session = FakeSession([Position(3, number) for number in range(5)])
    reader = reader_of(session, **LIMITED)
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    session.visible = [Position(3, 0), Position(3, 1), *left, Position(6, 0)]
    with pytest.raises(InputLost, match=r"had not read yet .*partition-0 from 3:2 on.*message TTL"):
        reader.latestOffset(offset, ReadMaxRows(2))
    accepting = reader_of(session, failOnDataLoss="false", **LIMITED)
    session.visible = [Position(3, number) for number in range(5)]
    offset = accepting.latestOffset(accepting.initialOffset(), ReadMaxRows(2))
    session.visible = [*left, Position(6, 0)]
    following = accepting.latestOffset(offset, ReadMaxRows(2))
    assert ends(following)[0] > Position(3, 4)


def test_messages_that_were_read_may_vanish_and_others_may_come():
    session = FakeSession([Position(3, number) for number in range(5)])
    reader = reader_of(session, **LIMITED)
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    session.visible = [*session.visible[2:], Position(6, 0)]
    offset = reader.latestOffset(offset, ReadMaxRows(2))
    assert ends(offset)[0] == Position(3, 3)


def test_a_stream_waits_for_as_many_rows_as_a_batch_should_have():
    session = FakeSession([Position(3, 0)])
    reader = reader_of(session, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    session.entries = {Position(3, 0): 2}
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    assert ends(offset)[0] == Position(3, 0), "the first batch does not wait"
    session.visible += [Position(3, 1), Position(3, 2)]
    assert reader.latestOffset(offset, ReadMaxRows(9)) is offset
    session.visible.append(Position(3, 3))
    session.entries = {Position(3, 0): 3}
    assert ends(reader.latestOffset(offset, ReadMaxRows(9)))[0] == Position(3, 3)


def test_available_now_does_not_wait_for_more_rows():
    session = FakeSession([Position(3, 0), Position(3, 1)])
    reader = reader_of(session, minOffsetsPerTrigger="30", max_entries_per_trigger="1")
    reader.prepareForTriggerAvailableNow()
    offset = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    assert ends(reader.latestOffset(offset, ReadMaxRows(1)))[0] == Position(3, 1)
