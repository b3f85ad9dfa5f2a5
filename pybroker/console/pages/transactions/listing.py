"""Lists live transactions, or those that ended within an hour, and those that block readers."""

from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.transactions.names import API, ROOT, SHARED
from pybroker.console.visit import Visit

_ON_A_PAGE: Final = 100
_BLOCKED_SHOWN: Final = 10
_EVERY_S: Final = 2
# Title, sort key, and whether the sort begins with the largest.
COLUMNS: Final = (
    ("Transaction", "id", False),
    ("State", "state", False),
    ("Owner", "owner", False),
    ("Age", "age", True),
    ("Time left", "left", False),
    ("Participants", "participants", True),
    ("Messages", "messages", True),
    ("Bytes", "bytes", True),
    ("Blocks", "blocked", True),
)
_SORTS: Final = {sort: descends for _, sort, descends in COLUMNS}
_STATES: Final = {
    "live": ("OPEN", "PREPARED", "COMMITTING", "ABORTING"),
    "ended": ("COMMITTED", "ABORTED"),
}


async def listing(visit: Visit) -> Response:
    return await _shown(visit, "transactions.html", "live")


async def live(visit: Visit) -> Response:
    return await _shown(visit, "transactions_live.html", "live")


async def ended(visit: Visit) -> Response:
    return await _shown(visit, "transactions.html", "ended")


async def ended_live(visit: Visit) -> Response:
    return await _shown(visit, "transactions_live.html", "ended")


async def _shown(visit: Visit, template: str, which: str) -> Response:
    said = {name: visit.query(name).strip() for name in ("state", "topic", "owner", "sort")}
    if said["state"] not in _STATES[which]:
        said["state"] = ""
    least_s, page = visit.number("age", 0), visit.number("page", 1, least=1)
    query: dict[str, str | int] = {
        name: value for name, value in said.items() if value and name != "sort"
    }
    query |= {"page": page, "limit": _ON_A_PAGE}
    sort = said["sort"] if said["sort"] in _SORTS else "age"
    descends = {"desc": True, "asc": False}.get(visit.query("order"), _SORTS[sort])
    if which == "live":
        query |= {"sort": sort, "order": "desc" if descends else "asc"}
        query |= {"minAgeMs": 1000 * least_s} if least_s else {}
    found: dict[str, Any] = await visit.api.get(f"{API}/{which}", query)
    filters = {name: value for name, value in said.items() if value and name != "sort"}
    filters |= {"age": str(least_s)} if least_s and which == "live" else {}
    order = {"sort": sort, "order": "desc" if descends else "asc"} if which == "live" else {}
    base = ROOT if which == "live" else f"{ROOT}/ended"
    return await visit.render(
        template,
        which=which,
        root=ROOT,
        base=base,
        found=found,
        rows=found["transactions"],
        page=page,
        pages_of_list=max(1, -(-found["matching"] // _ON_A_PAGE)),
        states=_STATES[which],
        filters=filters,
        sort=sort,
        order=order,
        columns=_columns(base, filters, sort, descends) if which == "live" else COLUMNS,
        here=f"{base}?{urlencode(filters | order)}&",
        rows_url=f"{ROOT}/{which}/rows?{urlencode(filters | order | {'page': page})}",
        every_s=_EVERY_S,
        blocking=await _blocking(visit) if which == "live" else None,
        **SHARED,
    )


def _columns(
    base: str, filters: dict[str, str], sort: str, descends: bool
) -> list[tuple[str, str, str]]:
    """For each column its title, the address that sorts by it, and its order as in aria-sort."""
    shown = []
    for title, by, first_descends in COLUMNS:
        is_it = by == sort
        order = not descends if is_it else first_descends
        query = urlencode(filters | {"sort": by, "order": "desc" if order else "asc"})
        now = ("descending" if descends else "ascending") if is_it else ""
        shown.append((title, f"{base}?{query}", now))
    return shown


async def _blocking(visit: Visit) -> dict[str, Any] | None:
    """Topics with blocked readers; None if the role may not see them."""
    if not visit.api.may("GET", f"{API}/blocking"):
        return None
    found: dict[str, Any] = await visit.api.get(f"{API}/blocking", {"limit": _BLOCKED_SHOWN})
    return found


VIEWS: Final = (
    View("GET", ROOT, listing),
    View("GET", f"{ROOT}/live/rows", live, live=True),
    View("GET", f"{ROOT}/ended", ended),
    View("GET", f"{ROOT}/ended/rows", ended_live, live=True),
)
