"""The last lines of the log, and the log level."""

from typing import Final

from starlette.responses import Response

from pybroker.console.api import Refused
from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console/logs"
_LOG: Final = "/admin/v2/brokers/log"
_CONFIGURATION: Final = "/admin/v2/brokers/configuration"
_LEVEL: Final = "logLevel"
_MOST: Final = 500


async def logs(visit: Visit) -> Response:
    problem, lines = "", list[str]()
    try:
        lines = (await visit.api.get(_LOG, {"lines": _MOST}))["lines"]
    except Refused as refused:
        problem = refused.reason
    words = visit.query("search").lower()
    chosen: dict[str, str] = await visit.api.get(f"{_CONFIGURATION}/values")
    running: dict[str, str] = await visit.api.get(f"{_CONFIGURATION}/runtime")
    return await visit.render(
        "logs.html",
        search=visit.query("search"),
        lines=[line for line in reversed(lines) if words in line.lower()],
        problem=problem,
        chosen=chosen.get(_LEVEL),
        configured=running.get(_LEVEL, ""),
    )


async def change(visit: Visit) -> Response:
    level = visit.said("level")
    if not level:
        return visit.go(_PATH, "Enter a level, for example info or info,audit=debug", failed=True)
    template = f"{_CONFIGURATION}/{{key}}/{{value}}"
    done = f"The log level is now {level}"
    return await visit.act("POST", template, done, _PATH, key=_LEVEL, value=level)


async def take_back(visit: Visit) -> Response:
    done = "The log level was reset to the configured one"
    return await visit.act("DELETE", f"{_CONFIGURATION}/{{key}}", done, _PATH, key=_LEVEL)


PAGE: Final = Page(
    "Logs",
    _PATH,
    (
        View("GET", _PATH, logs),
        View("POST", f"{_PATH}/level", change),
        View("POST", f"{_PATH}/configured-level", take_back),
    ),
    ("GET", _LOG),
)
