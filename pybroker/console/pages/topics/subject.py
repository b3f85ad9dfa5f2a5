"""The topic that a page shows: its names in paths, and its sub-pages."""

from dataclasses import dataclass
from typing import Any, Final

from pybroker.console.formats import segment
from pybroker.console.visit import Visit

TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION: Final = TOPIC + "/subscription/{subscription}"
SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
BASE: Final = "/console/topics/{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:segment}"
_TABS: Final = (
    ("", "Topic", f"{TOPIC}/stats"),
    ("/messages", "Messages", f"{TOPIC}/examinemessage"),
    ("/schemas", "Schemas", f"{SCHEMAS}/schemas"),
    ("/policies", "Policies", f"{TOPIC}/retention"),
    ("/storage", "Storage", f"{TOPIC}/internalStats"),
)
_OF_WHAT_IS_KEPT: Final = ("/messages", "/storage")


@dataclass(frozen=True, slots=True)
class Subject:
    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def of(cls, visit: Visit) -> "Subject":
        parts = visit.parts
        return cls(parts["domain"], parts["tenant"], parts["namespace"], parts["topic"])

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def names(self) -> dict[str, str]:
        return {
            "domain": self.domain,
            "tenant": self.tenant,
            "namespace": self.namespace,
            "topic": self.local,
        }

    @property
    def schema_names(self) -> dict[str, str]:
        return {name: value for name, value in self.names.items() if name != "domain"}

    @property
    def url(self) -> str:
        return "/console/topics/" + "/".join(map(segment, self.names.values()))

    def subscription_url(self, subscription: str) -> str:
        return f"{self.url}/subscriptions/{segment(subscription)}"

    def tabs(self, visit: Visit) -> list[tuple[str, str]]:
        """Addresses and titles of the sub-pages that this role may see."""
        return [
            (self.url + path, title)
            for path, title, template in _TABS
            if (self.domain == "persistent" or path not in _OF_WHAT_IS_KEPT)
            and visit.api.may("GET", template, **self.names)
        ]

    def may(self, visit: Visit, method: str, template: str, /, **more: str) -> bool:
        return visit.api.may(method, template, **self.names, **more)


async def partitions_of(visit: Visit, subject: Subject) -> int:
    """The number of partitions; 0 for a topic without partitions."""
    found: dict[str, Any] = await visit.api.get(f"{TOPIC}/partitions", **subject.names)
    return int(found["partitions"])


async def stats_of(visit: Visit, subject: Subject, partitions: int) -> dict[str, Any]:
    path = "partitioned-stats" if partitions else "stats"
    found: dict[str, Any] = await visit.api.get(f"{TOPIC}/{path}", **subject.names)
    return found
