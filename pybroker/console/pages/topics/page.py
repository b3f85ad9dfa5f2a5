"""The page Topics: everything below /console/topics."""

from typing import Final

from pybroker.console.page import Page
from pybroker.console.pages.topics import (
    export,
    listing,
    messages,
    policies,
    scalable,
    schemas,
    storage,
    subscription,
    topic,
)

PAGE: Final = Page(
    "Topics",
    "/console/topics",
    (
        *listing.VIEWS,
        *messages.VIEWS,
        *export.VIEWS,
        *schemas.VIEWS,
        *policies.VIEWS,
        *storage.VIEWS,
        *subscription.VIEWS,
        *topic.VIEWS,
        *scalable.VIEWS,
    ),
)
