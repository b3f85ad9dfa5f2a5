"""One transaction: its state, its history as a drawing and a table, its blocking, its abort."""

from typing import Any, Final

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.transactions.bar import TopicBar, bar_of
from pybroker.console.pages.transactions.lanes import after, draw, name_of
from pybroker.console.pages.transactions.names import API, ROOT, SHARED
from pybroker.console.visit import Visit

_BASE: Final = f"{ROOT}/{{most:int}}/{{least:int}}"
_ABORT: Final = f"{API}/abortTransaction/{{most}}/{{least}}"
_BARS_SHOWN: Final = 4
_PARTICIPANTS: Final = 100
_EVERY_S: Final = 2
_DECIDED_BY: Final = {
    "client": "its client",
    "timeout": "its timeout",
    "administrator": "an administrator",
    "disconnect": "the close of its client's connection",
    "fencing": "a newer session of its transactional id",
    "unknown": "an unknown requester, before a restart",
}


async def one(visit: Visit) -> Response:
    return await _shown(visit, "transaction.html")


async def live(visit: Visit) -> Response:
    return await _shown(visit, "transaction_live.html")


async def _shown(visit: Visit, template: str) -> Response:
    names = {"most": visit.parts["most"], "least": visit.parts["least"]}
    found: dict[str, Any] = await visit.api.get(
        f"{API}/timeline/{{most}}/{{least}}", {"limit": _PARTICIPANTS}, **names
    )
    is_live = found["status"] in ("OPEN", "PREPARED", "COMMITTING", "ABORTING")
    return await visit.render(
        template,
        found=found,
        url=f"{ROOT}/{names['most']}/{names['least']}",
        root=ROOT,
        drawing=draw(found),
        bars=await _bars(visit, found) if is_live else [],
        is_live=is_live,
        may_abort=found["status"] in ("OPEN", "PREPARED") and visit.api.may("POST", _ABORT),
        decided_by=_DECIDED_BY,
        name_of=name_of,
        after=after,
        every_s=_EVERY_S,
        **SHARED,
    )


async def _bars(visit: Visit, found: dict[str, Any]) -> list[TopicBar]:
    """Bars of the topics that the transaction has written to; first those it blocks."""
    bars: list[TopicBar] = []
    for each in found["participants"]:
        if each["subscription"] is None and each["firstPosition"] and len(bars) < 2 * _BARS_SHOWN:
            drawn = await bar_of(visit, each["topic"])
            if drawn is not None and drawn.found["segments"]:
                bars.append(drawn)
    bars.sort(key=lambda each: not _blocks(each, found["txnId"]))
    return bars[:_BARS_SHOWN]


def _blocks(drawn: TopicBar, txn_id: str) -> bool:
    return any(
        each["txnId"] == txn_id and each["holdsReadersBack"] for each in drawn.found["transactions"]
    )


async def abort(visit: Visit) -> Response:
    names = {"most": visit.parts["most"], "least": visit.parts["least"]}
    txn_id = f"({names['most']},{names['least']})"
    back = f"{ROOT}/{names['most']}/{names['least']}"
    visit.confirm(txn_id)
    reason = visit.said("reason")
    if not reason:
        return visit.go(back, "Nothing was done: enter a reason", failed=True)
    done = f"Transaction {txn_id} was aborted"
    return await visit.act("POST", _ABORT, done, back, {"reason": reason}, **names)


VIEWS: Final = (
    View("GET", _BASE, one),
    View("GET", f"{_BASE}/live", live, live=True),
    View("POST", f"{_BASE}/abort", abort),
)
