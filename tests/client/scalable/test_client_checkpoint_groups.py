"""Checkpoint consumers that divide the segments of a topic among them."""

from typing import Any

import pytest
from scalable_orders import Orders, by_key, contents, receive

from pybroker.client import Client, Timeout
from pybroker.client.scalable import Checkpoint


def member(
    client: Client, orders: Orders, name: str, start: Checkpoint = Checkpoint.earliest
) -> Any:
    return client.create_checkpoint_consumer(orders.name, start, group="g", consumer_name=name)


def all_of(*consumers: Any) -> list[Any]:
    """What they receive until nothing more comes."""
    found, silent = list[Any](), 0
    while silent < 2 * len(consumers):
        for each in consumers:
            try:
                found.append(each.receive(timeout_millis=200))
                silent = 0
            except Timeout:
                silent += 1
    return found


def numbers(consumer: Any) -> set[int]:
    return set(consumer.checkpoint().places)


@pytest.fixture
def split(orders: Orders) -> Orders:
    """Two active segments, 1 and 2, with messages."""
    orders.split(0)
    return orders


def test_each_segment_has_one_of_them(client: Client, split: Orders) -> None:
    one, two = member(client, split, "one"), member(client, split, "two")
    published = split.publish()
    received = all_of(one, two)
    assert sorted(contents(received)) == published
    assert numbers(one) & {1, 2} and numbers(two) & {1, 2}
    assert not numbers(one) & numbers(two)


def test_their_checkpoints_together_are_one(client: Client, split: Orders) -> None:
    one, two = member(client, split, "one"), member(client, split, "two")
    first = split.publish()
    received = all_of(one, two)
    places = {**one.checkpoint().places, **two.checkpoint().places}
    one.close()
    two.close()
    later = split.publish()
    alone = member(client, split, "alone", Checkpoint(places))
    received += receive(alone, len(later))
    assert sorted(contents(received)) == first + later


def test_the_others_go_on_where_the_group_began(client: Client, split: Orders) -> None:
    """Where the one that left was, only its checkpoint says."""
    one, two = member(client, split, "one"), member(client, split, "two")
    published = split.publish()
    assert sorted(contents(all_of(one, two))) == published
    mine = numbers(one)
    two.close()
    again = all_of(one)
    assert again and {bytes(each.data()) for each in again} <= set(published)
    assert numbers(one) > mine


def test_the_end_is_where_it_was_when_the_consumer_was_made(client: Client, split: Orders) -> None:
    split.publish()
    one = member(client, split, "one", Checkpoint.latest)
    two = member(client, split, "two", Checkpoint.latest)
    later = split.publish()
    two.close()  # and has read nothing
    assert sorted(contents(all_of(one))) == later


def test_children_are_divided_and_come_after_their_parents(client: Client, split: Orders) -> None:
    one = member(client, split, "one")
    published = split.publish()
    split.split(1)
    published += split.publish()
    received = receive(one, len(published))
    assert all(values == sorted(values) for values in by_key(received).values())
    two = member(client, split, "two")
    published = split.publish()
    found = {bytes(each.data()) for each in all_of(one, two)}
    assert found.issuperset(published) and numbers(two)
