"""A topic's schemas, newest first."""

from typing import Final

from starlette.responses import Response

from pybroker.console.page import View
from pybroker.console.pages.topics.subject import BASE, SCHEMAS, Subject
from pybroker.console.visit import Visit


async def schemas(visit: Visit) -> Response:
    subject = Subject.of(visit)
    found = await visit.api.get(f"{SCHEMAS}/schemas", **subject.schema_names)
    versions = sorted(found["getSchemaResponses"], key=lambda each: -each["version"])
    return await visit.render("schemas.html", subject=subject, versions=versions)


VIEWS: Final = (View("GET", f"{BASE}/schemas", schemas),)
