"""The groups of Kafka's clients, and how far behind each is. Only if the broker serves them."""

from typing import Any, Final

from starlette.responses import Response

from pybroker.admin.services import AdminServices
from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console/kafka-groups"
_GROUPS: Final = "/admin/v3/kafka/groups"
_MOST: Final = 500


def _is_offered(services: AdminServices) -> bool:
    return services.kafka() is not None


async def groups(visit: Visit) -> Response:
    search = visit.query("search")
    found = [each for each in await visit.api.get(_GROUPS) if search in each["group"]]
    found.sort(key=lambda each: str(each["group"]))
    return await visit.render(
        "kafka_groups.html", search=search, total=len(found), groups=found[:_MOST]
    )


async def group(visit: Visit) -> Response:
    if not (name := visit.query("name")):
        return await groups(visit)
    found: dict[str, Any] = await visit.api.get(f"{_GROUPS}/{{group}}", None, group=name)
    offsets = found["offsets"]
    lag = sum(each.get("lag", 0) for each in offsets)
    return await visit.render(
        "kafka_group.html",
        group=found,
        lag=lag,
        is_whole=all("lag" in each for each in offsets),
        offsets=offsets[:_MOST],
        more=len(offsets) - _MOST,
    )


PAGE: Final = Page(
    "Kafka groups",
    _PATH,
    (View("GET", _PATH, groups), View("GET", f"{_PATH}/group", group)),
    ("GET", _GROUPS),
    _is_offered,
)
