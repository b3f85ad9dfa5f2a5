"""Checks which topics and subscriptions may take part in transactions, and ends transactions there.

A participant must be able to end the transaction, so names are checked when they are added. Older
logs may contain names that fail the check: for these the coordinator gets CannotParticipate, which
is final.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import Protocol

from managed_ledger.prompt import Prompt, fail, prompt, when_done
from managed_ledger.shared_task import shared_task
from pybroker.base.errors import InvalidTopicName, NotAllowed, ServiceNotReady
from pybroker.base.names import TopicName, TxnId, check_subscription_name
from pybroker.base.runtime import Tasks, is_a_sentence
from pybroker.broker.policies.bound_coordinators import (
    TRANSACTION_COORDINATORS,
    check_coordinator,
)
from pybroker.broker.policies.policies import Policies
from pybroker.broker.topic import Topic
from pybroker.transaction.coordinator.participants import CannotParticipate
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction

End = Callable[[Topic], Awaitable[object] | None]


class LoadsTopics(Protocol):
    def serving(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded and not closing."""
        ...

    def exists(self, name: TopicName) -> bool: ...

    async def get(self, name: TopicName) -> Topic | None:
        """Loads the topic if necessary; None if it does not exist."""
        ...


class ChecksTopics(Protocol):
    def check_usable(self, name: TopicName) -> None: ...
    @property
    def policies(self) -> Policies: ...


def check_may_join(policies: Policies, txn_id: TxnId, namespace: str) -> None:
    """Raises BoundElsewhere if only other coordinators' transactions may take part."""
    allowed = policies.of_namespace(namespace)[TRANSACTION_COORDINATORS]
    check_coordinator(allowed, namespace, txn_id.most)


def partition_to_add(topics: ChecksTopics, txn_id: TxnId, topic: str) -> str:
    """Returns the topic's name as the client sent it, because transactions show it. Raises
    InvalidTopicName, NotAllowed, NotFound, BoundElsewhere.
    """
    name = TopicName.parse(topic)
    if not name.persistent:
        raise NotAllowed(f"{name} cannot take part in a transaction: it is not persistent")
    topics.check_usable(name)
    check_may_join(topics.policies, txn_id, name.namespace_name)
    return topic


def subscription_to_add(
    topics: ChecksTopics, txn_id: TxnId, topic: str, subscription: str
) -> tuple[str, str]:
    """Like `partition_to_add`, with the subscription's name."""
    check_subscription_name(subscription)
    return partition_to_add(topics, txn_id, topic), subscription


class LocalParticipants:
    """Implements transaction.participants.Participants.

    Ends on a topic that is not loaded wait for it, and begin in the order in which they came: a
    topic in commit order shows the transactions in that order. Later ends queue behind them.
    """

    def __init__(self, topics: LoadsTopics) -> None:
        self._topics = topics
        self._waiting: dict[TopicName, list[tuple[End, Prompt[object]]]] = {}
        self._tasks = Tasks("participants")

    async def close(self) -> None:
        """Fail the ends that wait for a topic; their coordinators repeat them."""
        await self._tasks.close()
        waiting, self._waiting = self._waiting, {}
        for name, ends in waiting.items():
            _begin_all(ends, None, ServiceNotReady(f"{name}: the broker is stopping; try again"))

    def end_on_partition(
        self,
        txn_id: TxnId,
        topic: str,
        action: TxnAction,
        low_watermark: int,
        not_later: bool = False,
    ) -> Awaitable[object] | None:
        """A deleted topic has no messages left: there is nothing to end."""
        name = participant_name(topic)
        if (serving := self._serving(name)) is not None:
            return serving.end_transaction(txn_id, action, low_watermark, not_later)

        def end(loaded: Topic) -> Awaitable[object] | None:
            return loaded.end_transaction(txn_id, action, low_watermark)

        return self._when_loaded(name, end, not_later)

    def end_on_subscription(
        self,
        txn_id: TxnId,
        topic: str,
        subscription: str,
        action: TxnAction,
        low_watermark: int,
        not_later: bool = False,
    ) -> Awaitable[object] | None:
        name = participant_name(topic)
        if (serving := self._serving(name)) is not None:
            found = serving.subscriptions.get(subscription)
            return None if found is None else found.end_transaction(txn_id, action, not_later)

        def end(loaded: Topic) -> Awaitable[object] | None:
            found = loaded.subscriptions.get(subscription)
            return None if found is None else found.end_transaction(txn_id, action)

        return self._when_loaded(name, end, not_later)

    def _serving(self, name: TopicName) -> Topic | None:
        """The topic if an end can begin on it at once."""
        return None if name in self._waiting else self._topics.serving(name)

    def _when_loaded(self, name: TopicName, end: End, not_later: bool) -> Awaitable[object] | None:
        waiting = self._waiting.get(name)
        if waiting is None and not self._topics.exists(name):
            return None
        if not_later:
            raise WouldWait
        if waiting is None:
            waiting = self._waiting[name] = []
            self._tasks.start(self._load(name), f"loading {name}")
        ended: Prompt[object] = prompt()
        waiting.append((end, ended))
        return ended

    async def _load(self, name: TopicName) -> None:
        """Load the topic and begin the ends that wait for it."""
        loaded, failure = None, None
        try:
            loaded = await self._loaded(name)
        except Exception as error:
            failure = error
        _begin_all(self._waiting.pop(name), loaded, failure)
        del failure  # it refers to this frame, which must not refer back

    async def _loaded(self, name: TopicName) -> Topic | None:
        return await self._topics.get(name)


def _begin_all(
    ends: list[tuple[End, Prompt[object]]], loaded: Topic | None, failure: Exception | None
) -> None:
    for end, ended in ends:
        if failure is not None:
            fail(ended, failure)
        elif loaded is None:  # a deleted topic
            _succeed(ended, None)
        else:
            _begin(end, loaded, ended)


def _begin(end: End, loaded: Topic, ended: Prompt[object]) -> None:
    try:
        ending = end(loaded)
    except Exception as error:
        if is_a_sentence(error):
            error = error.with_traceback(None)  # its frames refer to the topic, and to `ended`
        fail(ended, error)
        return
    if ending is None:
        _succeed(ended, None)
        return
    # Cancelling `ended` does not cancel it: others may wait for the same result.
    started = shared_task(ending) if isinstance(ending, Coroutine) else ending
    assert isinstance(started, asyncio.Future), "an end is a coroutine or a future"
    when_done(started, partial(_pass_on, ended))


def _pass_on(ended: Prompt[object], ending: "asyncio.Future[object]") -> None:
    if ending.cancelled():
        ended.cancel()
    elif (error := ending.exception()) is not None:
        fail(ended, error)
    else:
        _succeed(ended, ending.result())


def _succeed(ended: Prompt[object], result: object) -> None:
    if not ended.done():  # otherwise the request was cancelled
        ended.set_result(result)


@lru_cache(maxsize=1000)
def participant_name(topic: str) -> TopicName:
    """Raises CannotParticipate for a name that no topic can ever have."""
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName as error:
        raise CannotParticipate(str(error)) from error
    if name.internal:
        raise CannotParticipate(f"{name} is a transaction log, not a topic")
    return name
