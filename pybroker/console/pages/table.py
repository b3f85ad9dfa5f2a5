"""The pages in the navigation's order. A new page needs a module here, a template and a line."""

from typing import Final

from pybroker.console.page import Page
from pybroker.console.pages import (
    configuration,
    connections,
    faults,
    kafka_groups,
    logs,
    overview,
    pipelines,
    tenants,
)
from pybroker.console.pages.topics import page as topics
from pybroker.console.pages.transactions import page as transactions

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    topics.PAGE,
    transactions.PAGE,
    kafka_groups.PAGE,
    connections.PAGE,
    tenants.PAGE,
    pipelines.PAGE,
    faults.PAGE,
    configuration.PAGE,
    logs.PAGE,
)
