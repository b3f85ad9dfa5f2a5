"""The chain of a query's markers on the control topic: what the next driver finds there."""

import pytest
from exactly_once_driver import CHAIN, CONTROL, CURSOR, NEXT, Driver
from spark_fakes import FakeCheckpoint, FakeEntry

from pybroker.base.errors import ServiceNotReady
from pybroker.spark.marker import Marker
from pybroker.spark.transactional import Fenced, Step
from pybroker.spark.work import Work


def test_without_pulsar_input_the_newest_marker_is_the_fence():
    work = Work("query", 0, {})
    driver = Driver()
    driver.process(work)
    driver.process(work)
    assert [marker.batch_id for marker in driver.markers] == [0]
    driver.process(Work("query", 1, {}))
    assert [marker.batch_id for marker in driver.markers] == [0, 1]


def test_queries_that_share_a_control_topic_find_their_own_markers():
    first = Driver()
    first.process(Work("query", 0, {}))
    other = Driver(first.broker)
    other.process(Work("other", 0, {}))
    other.process(Work("other", 1, {}))
    again = Driver(first.broker)
    again.process(Work("query", 0, {}))
    assert again.steps == [Step.SKIPPED]
    assert [(each.query_id, each.batch_id) for each in again.markers] == [
        *(("query", 0), ("other", 0), ("other", 1))
    ]


def test_a_marker_that_anothers_open_transaction_hides_is_waited_for():
    first = Driver()
    first.process(Work("query", 0, {}))
    first.process(Work("query", 1, {}))
    others = first.broker.begin()
    entries = first.broker.topic(CONTROL).entries
    entries.insert(len(entries) - 1, FakeEntry(b"of another query", others))
    again = Driver(first.broker, patience_s=2.0)
    with pytest.raises(ServiceNotReady, match="open transaction of another query"):
        again.process(Work("query", 1, {}))
    others.commit()
    again.process(Work("query", 1, {}))
    assert again.steps == [Step.SKIPPED]
    assert len(again.markers) == 2


def test_an_opening_too_many_is_not_taken_for_the_newest_marker():
    """Two drivers opened the chain, a batch was committed, and another query's transaction hides
    its marker.
    """
    first = Driver()
    first.process(Work("query", 0, {}))
    entries = first.broker.topic(CONTROL).entries
    entries.insert(1, FakeEntry(Marker.opening("query").to_bytes()))
    others = first.broker.begin()
    entries.insert(2, FakeEntry(b"of another query", others))
    again = Driver(first.broker, patience_s=2.0)
    with pytest.raises(ServiceNotReady):
        again.process(Work("query", 0, {}))
    assert len(first.broker.transactions) == 2


def test_a_batch_whose_cursors_prove_that_it_was_not_published_runs_without_any_marker():
    """A message TTL, and the end of the ledger, have taken the markers."""
    first = Driver()
    first.process()
    first.broker.expire(*CHAIN)
    first.broker.trim()
    Driver(first.broker).process(NEXT)
    assert first.broker.cursors[CURSOR] == 12
    assert [marker.batch_id for marker in Driver(first.broker).markers] == [3, 4]


def test_a_batch_whose_marker_a_message_ttl_has_passed_is_skipped():
    first = Driver()
    first.process()
    first.broker.expire(*CHAIN)
    again = Driver(first.broker)
    again.process()
    assert again.steps == [Step.SKIPPED]


def test_what_hides_a_marker_is_not_taken_for_a_message_ttl():
    """An opening from before the marker is visible, and so is the marker before."""
    first = Driver()
    first.process(Work("query", 0, {}))
    first.broker.store(CONTROL, Marker.opening("query").to_bytes())
    others = first.broker.begin()
    first.broker.topic(CONTROL).entries.append(FakeEntry(b"of another query", others))
    first.process(Work("query", 1, {}))
    again = Driver(first.broker, patience_s=2.0)
    with pytest.raises(ServiceNotReady):
        again.process(Work("query", 1, {}))
    others.commit()
    again.process(Work("query", 1, {}))
    assert again.steps == [Step.SKIPPED]


@pytest.mark.parametrize("expired", [False, True])
def test_of_two_drivers_without_pulsar_input_one_gets_through(expired):
    """The first is about to commit when the second begins with another checkpoint. They also meet
    where a message TTL has passed the newest marker."""
    first, second = Driver(), None
    batch_id = 0
    if expired:
        first.process(Work("query", 0, {}))
        first.broker.expire(*CHAIN)
        first, batch_id = Driver(first.broker), 1

    def rival(step, work):
        nonlocal second
        if step is Step.PUBLISHED and second is None:
            second = Driver(first.broker, FakeCheckpoint(), patience_s=2.0)
            with pytest.raises(Fenced):
                second.process(work)

    object.__setattr__(first.sink.options, "on_step", rival)
    first.process(Work("query", batch_id, {}))
    assert len(first.markers) == batch_id + 1
