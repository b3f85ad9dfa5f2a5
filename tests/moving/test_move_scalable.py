"""What a move to several brokers refuses: a topic whose segments they could not serve together."""

import pytest

from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import scalable_key
from pybroker.broker.scalable.record import TopicRecord, migrated, new_record, pruned
from pybroker.moving.plan import check_for_several_brokers
from pybroker.moving.record import MoveFailed

NAME = any_topic("topic://public/default/my shop")


def check(record: TopicRecord) -> None:
    check_for_several_brokers({scalable_key(NAME): record.encode(), "/other": b"x"})


def test_partitions_of_a_topic_that_was_made_scalable_stay_with_one_broker() -> None:
    record = migrated(NAME, 2, 0)
    with pytest.raises(MoveFailed, match="topic://public/default/my shop was made of an ordinary"):
        check(record)
    check(pruned(record, [0, 1]))
    check(new_record(2, 0))
