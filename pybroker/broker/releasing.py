"""Releases a bundle's topics, so that another broker can serve them."""

import asyncio
import logging
from typing import Final

from pybroker.broker.ownership import Bundle
from pybroker.broker.topics import Topics

log = logging.getLogger(__name__)
_AT_ONCE: Final = 64


async def release_topics(topics: Topics, bundle: Bundle) -> None:
    """Unload them; clients look them up again. Call when `owns` is false, so none is loaded again.

    A failure is logged: the next owner fences the ledgers that could not be closed.
    """
    await topics.at_rest(bundle.namespace)  # loads that had begun
    # The next owner finishes deletions, too, and creates anew what this one would still delete.
    await topics.deletions.at_rest(bundle.holds)
    names = [name for name in topics.loaded_names() if bundle.holds(name)]
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        outcomes = await asyncio.gather(*map(topics.unload, some), return_exceptions=True)
        for name, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, Exception):
                log.warning("%s did not close cleanly: %s", name, outcome)
