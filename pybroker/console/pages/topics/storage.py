"""A topic's ledgers and cursors."""

from typing import Final

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.topics.subject import BASE, TOPIC, Subject, partitions_of
from pybroker.console.visit import Visit

_MOST_SHOWN: Final = 500


async def storage(visit: Visit) -> Response:
    subject = Subject.of(visit)
    if partitions := await partitions_of(visit, subject):
        return await visit.render(
            "storage_of_partitions.html", subject=subject, partitions=partitions
        )
    stats = await visit.api.get(f"{TOPIC}/internalStats", **subject.names)
    ledgers, cursors = stats["ledgers"], sorted(stats["cursors"].items())
    return await visit.render(
        "storage.html",
        subject=subject,
        stats=stats,
        ledgers=ledgers[-_MOST_SHOWN:],
        cursors=cursors[:_MOST_SHOWN],
        unshown=max(0, len(ledgers) - _MOST_SHOWN) + max(0, len(cursors) - _MOST_SHOWN),
        largest=max((each["size"] for each in ledgers), default=0),
    )


VIEWS: Final = (View("GET", f"{BASE}/storage", storage),)
