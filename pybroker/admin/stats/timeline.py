"""One transaction from its beginning to its end, by participant.

A participant's first position is known after its first message is durable, the marker's position
and the time of the end once it has ended there. Unknown values are null.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from pybroker.admin.stats.transactions import Tally
from pybroker.base.errors import InvalidTopicName
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.topics import Topics
from pybroker.transaction.buffer.buffer_stats import Marked
from pybroker.transaction.coordinator.ends.participants import Participant, Retry
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata

Stats = dict[str, Any]
_DESCRIBED_A_TURN: Final = 50

Retries = Mapping[Participant, Retry]


class _Followed(NamedTuple):
    at_ms: int | None = None
    result: object = None


async def participants(
    transaction: TransactionMetadata, most: int, topics: Topics, retries: Retries
) -> list[Stats]:
    """Topics first, in the order in which they were added, then subscriptions; `most` of each."""
    marks = [] if transaction.end is None else transaction.end.followed
    followed = {each: _Followed(at_ms, result) for each, at_ms, result in marks}
    pace, found = Pace(_DESCRIBED_A_TURN), list[Stats]()
    for participant, added_ms in _each(transaction, most):
        mark = followed.get(participant, _Followed())
        retry = retries.get(participant)
        found.append(
            {
                "topic": participant.topic,
                "subscription": participant.subscription,
                "addedTimestamp": added_ms,
                **_held(_serving(topics, participant.topic), participant, transaction.txn_id),
                **_positions(mark.result),
                "followedTimestamp": mark.at_ms,
                "attempts": 0 if retry is None else retry.attempts,
                "lastError": None if retry is None else retry.last_error,
            }
        )
        await pace.step()
    return found


async def tally_of(transaction: TransactionMetadata, most: int, topics: Topics) -> Tally:
    """What the transaction holds and blocks on its first `most` topics."""
    pace, tally = Pace(_DESCRIBED_A_TURN), Tally()
    for name in list(islice(transaction.partitions, most)):
        await pace.step()
        topic = _serving(topics, name)
        if topic is None:
            continue
        if (held := topic.buffer.contents.of(transaction.txn_id)) is not None:
            tally.holds(held)
        tally.blocks_on(topic, transaction.txn_id)
    return tally


def _each(transaction: TransactionMetadata, most: int) -> Iterator[tuple[Participant, int | None]]:
    for topic, added_ms in list(islice(transaction.partitions.items(), most)):
        yield Participant(topic), added_ms
    for pair, added_ms in list(islice(transaction.subscriptions.items(), most)):
        yield Participant(*pair), added_ms


def _serving(topics: Topics, name: str) -> Topic | None:
    """The topic; None if it is not loaded, because statistics load nothing."""
    try:
        return topics.serving(TopicName.parse(name))
    except InvalidTopicName:  # logged before names were checked
        return None


def _held(topic: Topic | None, participant: Participant, txn_id: TxnId) -> Stats:
    found: Stats = {
        "firstPosition": None,
        "messages": None,
        "bytes": None,
        "acknowledgements": None,
        "cumulativeAckPosition": None,
    }
    if topic is None:
        return found
    if participant.subscription is None:
        first, held = topic.buffer.first_in_log(txn_id), topic.buffer.contents.of(txn_id)
        if first is not None:
            found["firstPosition"] = str(first)
        if held is not None:
            found |= {"messages": held.messages, "bytes": held.size_bytes}
        return found
    subscription = topic.subscriptions.get(participant.subscription)
    pending = None if subscription is None else subscription.pending_acks
    stats = None if pending is None else pending.stats_of(txn_id)
    if stats is not None:
        found["acknowledgements"] = stats.individual
        if stats.cumulative_position is not None:
            found["cumulativeAckPosition"] = str(stats.cumulative_position)
    return found


def _positions(result: object) -> Stats:
    if not isinstance(result, Marked):
        return {"markerPosition": None}
    first = {} if result.first is None else {"firstPosition": str(result.first)}
    return {**first, "markerPosition": str(result.marker)}
