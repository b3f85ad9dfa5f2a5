"""The running configuration, and changes to its dynamic keys."""

from typing import Final

from starlette.responses import Response

from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console/configuration"
_CONFIGURATION: Final = "/admin/v2/brokers/configuration"


async def configuration(visit: Visit) -> Response:
    words = visit.query("search").lower()
    running: dict[str, str] = await visit.api.get(f"{_CONFIGURATION}/runtime")
    return await visit.render(
        "configuration.html",
        search=visit.query("search"),
        rows=[(name, running[name]) for name in sorted(running) if words in name.lower()],
        dynamic=sorted(await visit.api.get(_CONFIGURATION)),
        chosen=await visit.api.get(f"{_CONFIGURATION}/values"),
    )


async def change(visit: Visit) -> Response:
    key, value = visit.said("key"), visit.said("value")
    if not key or not value:
        return visit.go(_PATH, "Choose a key, and enter a value", failed=True)
    template = f"{_CONFIGURATION}/{{key}}/{{value}}"
    return await visit.act("POST", template, f"{key} is now {value}", _PATH, key=key, value=value)


async def take_back(visit: Visit) -> Response:
    key = visit.said("key")
    done = f"{key} was reset to the value of the configuration file"
    return await visit.act("DELETE", f"{_CONFIGURATION}/{{key}}", done, _PATH, key=key)


PAGE: Final = Page(
    "Configuration",
    _PATH,
    (
        View("GET", _PATH, configuration),
        View("POST", f"{_PATH}/change", change),
        View("POST", f"{_PATH}/take-back", take_back),
    ),
    ("GET", f"{_CONFIGURATION}/runtime"),
)
