"""A page: its place in the navigation, and the requests that it answers.

To add a page, write a module in `pages/` with a `PAGE`, a template, and a line in `pages/table.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from pybroker.admin.services import AdminServices
from pybroker.console.visit import Visit

Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class View:
    """`path` is below /console, in Starlette's syntax. A POST must contain the form token. A `live`
    part of a page is also served as a stream of events.
    """

    method: str
    path: str
    handler: Handler
    live: bool = False


def always(_: AdminServices) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Page:
    """`asks` is a route of the admin API: the navigation shows the page only to roles that may call
    it. A broker that does not offer the page answers 404 at its paths.
    """

    title: str
    path: str
    views: tuple[View, ...]
    asks: tuple[str, str] | None = None
    is_offered: Callable[[AdminServices], bool] = always

    def is_for(self, visit: Visit) -> bool:
        return self.asks is None or visit.api.may(*self.asks)
