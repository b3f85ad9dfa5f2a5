"""Releases a bundle's topics, so that another broker can serve them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.names import TRANSACTION_LOG_PREFIX, TopicName, topic_of_log
from pybroker.broker.brokers.ownership import Bundle
from pybroker.broker.topics import Topics

log = logging.getLogger(__name__)
_AT_ONCE: Final = 64


async def release_topics(topics: Topics, ledgers: ManagedLedgerFactory, bundle: Bundle) -> None:
    """Unload the bundle's topics; clients look them up again. Call when `owns` is false, so that
    none is loaded again. A failure is logged: the next owner fences the ledgers that could not be
    closed.
    """
    await topics.at_rest(bundle.namespace)  # loads that had begun

    def is_there(name: TopicName) -> bool:
        return bundle.holds(topics.place_of(name))

    # The next owner finishes deletions, too, and may recreate what this broker would still delete.
    await topics.deletions.at_rest(is_there)
    await _unload(topics, [name for name in topics.loaded_names() if is_there(name)])
    await _close_logs(ledgers, is_there)


async def release_parts(topics: Topics, ledgers: ManagedLedgerFactory, name: TopicName) -> None:
    """Unload what this broker still has of the ordinary topic that was made the scalable topic
    `name`, unless it serves that. Like `release_topics`.
    """
    if topics.ownership.owns(name) or not topics.scalable.was_ordinary(name):
        return

    def is_part(topic: TopicName) -> bool:
        return topic.domain == "persistent" and topic.scalable_name == name

    await topics.at_rest(name.namespace_name)
    await topics.deletions.at_rest(is_part)
    await _unload(topics, list(filter(is_part, topics.loaded_names())))
    await _close_logs(ledgers, is_part)


async def _unload(topics: Topics, names: list[TopicName]) -> None:
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        outcomes = await asyncio.gather(*map(topics.unload, some), return_exceptions=True)
        for name, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, Exception):
                log.warning("%s did not close cleanly: %s", name, outcome)


async def _close_logs(
    ledgers: ManagedLedgerFactory, is_released: Callable[[TopicName], bool]
) -> None:
    """Close what the topics, which close their logs, have left. A log that was left open would be
    used again, out of date, when the bundle comes back. A log that is still being opened, without a
    waiter, would fence the next owner's.
    """

    def is_of_these(log_name: str) -> bool:
        topic = topic_of_log(log_name)
        if topic is None or topic.local.startswith(TRANSACTION_LOG_PREFIX):
            return False  # a coordinator's log belongs to another bundle
        return is_released(topic)

    await ledgers.openings_ended(is_of_these)
    for name in filter(is_of_these, ledgers.opened_names()):
        if (ledger := ledgers.opened(name)) is not None:
            log.warning("%s was still open after its topic was released", name)
            try:
                await ledger.close()
            except ManagedLedgerError as error:
                log.warning("%s did not close cleanly: %s", name, error)
