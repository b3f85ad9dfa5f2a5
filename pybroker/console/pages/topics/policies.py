"""The policies of a topic, and the level where each was set."""

from typing import Final

from starlette.responses import Response

from pybroker.console import policy_forms, policy_rows
from pybroker.console.page import View
from pybroker.console.pages.topics.subject import BASE, Subject
from pybroker.console.visit import Visit


async def policies(visit: Visit) -> Response:
    subject = Subject.of(visit)
    rows = await policy_rows.of_topic(visit.api, subject.names)
    return await visit.render(
        "policies.html", subject=subject, rows=rows, policies_url=_url(subject)
    )


async def set_policy(visit: Visit) -> Response:
    subject = Subject.of(visit)
    return await policy_forms.set_on_topic(visit, subject.names, _url(subject))


async def remove_policy(visit: Visit) -> Response:
    subject = Subject.of(visit)
    return await policy_forms.remove_from_topic(visit, subject.names, _url(subject))


def _url(subject: Subject) -> str:
    return f"{subject.url}/policies"


VIEWS: Final = (
    View("GET", f"{BASE}/policies", policies),
    View("POST", f"{BASE}/policies/set", set_policy),
    View("POST", f"{BASE}/policies/remove", remove_policy),
)
