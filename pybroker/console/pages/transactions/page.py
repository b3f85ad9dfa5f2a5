"""The page Transactions: everything below /console/transactions."""

from typing import Final

from pybroker.console.page import Page
from pybroker.console.pages.transactions import listing, one

PAGE: Final = Page("Transactions", "/console/transactions", (*listing.VIEWS, *one.VIEWS))
