"""Releases a bundle's topics, so that another broker can serve them."""

import asyncio
import logging
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.names import TRANSACTION_LOG_PREFIX, topic_of_log
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
    # The next owner finishes deletions, too, and may recreate what this broker would still delete.
    await topics.deletions.at_rest(bundle.holds)
    names = [name for name in topics.loaded_names() if bundle.holds(name)]
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        outcomes = await asyncio.gather(*map(topics.unload, some), return_exceptions=True)
        for name, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, Exception):
                log.warning("%s did not close cleanly: %s", name, outcome)
    await _close_logs(ledgers, bundle)


async def _close_logs(ledgers: ManagedLedgerFactory, bundle: Bundle) -> None:
    """Close what the topics, which close their logs, have left. A log that was left open would be
    used again, out of date, when the bundle comes back. A log that is still being opened, without a
    waiter, would fence the next owner's.
    """

    def is_of_bundle(log_name: str) -> bool:
        topic = topic_of_log(log_name)
        if topic is None or topic.local.startswith(TRANSACTION_LOG_PREFIX):
            return False  # a coordinator's log belongs to another bundle
        return bundle.holds(topic)

    await ledgers.openings_ended(is_of_bundle)
    for name in filter(is_of_bundle, ledgers.opened_names()):
        if (ledger := ledgers.opened(name)) is not None:
            log.warning("%s was still open after %s was released", name, bundle)
            try:
                await ledger.close()
            except ManagedLedgerError as error:
                log.warning("%s did not close cleanly: %s", name, error)
