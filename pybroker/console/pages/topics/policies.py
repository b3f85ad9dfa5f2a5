"""The policies of a topic, and where each was set."""

from typing import Final

from starlette.responses import Response

from pybroker.console import policy_rows
from pybroker.console.page import View
from pybroker.console.pages.topics.subject import BASE, Subject
from pybroker.console.visit import Visit


async def policies(visit: Visit) -> Response:
    subject = Subject.of(visit)
    rows = await policy_rows.of_topic(visit.api, subject.names)
    return visit.render("policies.html", subject=subject, rows=rows)


VIEWS: Final = (View("GET", f"{BASE}/policies", policies),)
