"""All topics that the role may see, with a search. Figures are shown for one page at a time.

The names come first, and the figures in a second request, because requesting a topic's figures
loads the topic.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from pybroker.base.runtime import Pace
from pybroker.console.api import Refused
from pybroker.console.formats import topic_url
from pybroker.console.page import View
from pybroker.console.pages.topics.subject import TOPIC
from pybroker.console.visit import Visit

_PATH: Final = "/console/topics"
_IN_NAMESPACE: Final = "/admin/v2/{domain}/{tenant}/{namespace}"
_ON_A_PAGE: Final = 50
_MOST_NAMESPACES: Final = 200  # searched together
_NAMES_A_TURN: Final = 200
_DOMAINS: Final = ("persistent", "non-persistent")
_SCALABLE: Final = "topic"
_SCALABLES: Final = "/admin/v2/scalable/{tenant}/{namespace}"
_PARTITION: Final = "-partition-"


@dataclass(slots=True)
class Row:
    name: str
    partitions: int = 0
    stats: Mapping[str, Any] | None = None
    problem: str = ""

    @property
    def scalable(self) -> bool:
        return self.name.startswith(f"{_SCALABLE}://")

    @property
    def backlog(self) -> int:
        field = "backlog" if self.scalable else "msgBacklog"
        return sum(each[field] for each in self._subscriptions)

    @property
    def consumers(self) -> int:
        found = (each["consumers"] for each in self._subscriptions)
        return sum(each if isinstance(each, int) else len(each) for each in found)

    @property
    def producers(self) -> int:
        return len((self.stats or {}).get("producers" if self.scalable else "publishers", ()))

    @property
    def _subscriptions(self) -> Iterable[Mapping[str, Any]]:
        found: Mapping[str, Any] = (self.stats or {}).get("subscriptions", {})
        return found.values()


async def listing(visit: Visit) -> Response:
    """The list of topics; with ?figures=1 only its rows, with figures."""
    said, namespaces = visit.query("namespace"), await _namespaces(visit)
    names = await _names(visit, [said] if said else namespaces[:_MOST_NAMESPACES])
    found = sorted(names)
    pages = max(1, -(-len(found) // _ON_A_PAGE))
    page = visit.number("page", 1, least=1, most=pages)
    shown = [Row(name, names[name]) for name in found[(page - 1) * _ON_A_PAGE : page * _ON_A_PAGE]]
    with_figures = visit.query("figures") == "1"
    if with_figures:
        await asyncio.gather(*(_look(visit, row) for row in shown))
    return await visit.render(
        "topics_rows.html" if with_figures else "topics.html",
        rows=shown,
        found=len(found),
        page=page,
        pages_of_list=pages,
        namespaces=namespaces,
        namespace=said,
        search=visit.query("search"),
        internal=visit.query("internal") == "1",
        unsearched=0 if said else max(0, len(namespaces) - _MOST_NAMESPACES),
        with_figures=with_figures,
    )


async def go(visit: Visit) -> Response:
    """Opens a topic by its name, for roles that may not list topics."""
    name = visit.query("topic").strip()
    if "://" not in name:
        name = f"persistent://{name if name.count('/') == 2 else f'public/default/{name}'}"
    domain, _, rest = name.partition("://")
    if domain not in (*_DOMAINS, _SCALABLE) or rest.count("/") < 2 or not all(rest.split("/", 2)):
        return visit.go(
            _PATH, f"{name} is not a topic's name: write tenant/namespace/topic", failed=True
        )
    return visit.go(topic_url(name))


async def _namespaces(visit: Visit) -> list[str]:
    """All namespaces; none if the role may not list them: the user then enters one."""
    if not visit.api.may("GET", "/admin/v2/tenants"):
        return []
    found: list[str] = []
    for tenant in await visit.api.get("/admin/v2/tenants"):
        found += await visit.api.get("/admin/v2/namespaces/{tenant}", tenant=tenant)
    return found


async def _names(visit: Visit, namespaces: Iterable[str]) -> dict[str, int]:
    """Matching topics and their number of partitions; 0: not partitioned. Omits the partitions."""
    found: dict[str, int] = {}
    pace, fits = Pace(_NAMES_A_TURN), _Filter(visit)
    for namespace in namespaces:
        tenant, _, local = namespace.partition("/")
        for domain in _DOMAINS:
            where = {"domain": domain, "tenant": tenant, "namespace": local}
            names: list[str] = await visit.api.get(_IN_NAMESPACE, **where)
            whole = dict.fromkeys(await visit.api.get(f"{_IN_NAMESPACE}/partitioned", **where), 0)
            for name in names:
                await pace.step()
                base, partition, _ = name.rpartition(_PARTITION)
                if partition and base in whole:
                    whole[base] += 1
                elif fits(name):
                    found[name] = 0
            for name, count in whole.items():
                await pace.step()
                if fits(name):
                    found[name] = max(count, 1)
        found |= await _scalable_names(visit, tenant, local, fits)
    return found


async def _scalable_names(
    visit: Visit, tenant: str, namespace: str, fits: "_Filter"
) -> dict[str, int]:
    names = await visit.api.get(_SCALABLES, tenant=tenant, namespace=namespace)
    return dict.fromkeys(filter(fits, names), 0)


class _Filter:
    """Matches names that contain all words of ?search; the broker's own topics only with
    ?internal=1.
    """

    def __init__(self, visit: Visit) -> None:
        self._words = visit.words("search")
        self._internal = visit.query("internal") == "1"

    def __call__(self, name: str) -> bool:
        lower = name.lower()
        if not all(word in lower for word in self._words):
            return False
        return self._internal or "/__" not in name


async def _look(visit: Visit, row: Row) -> None:
    domain, _, rest = row.name.partition("://")
    tenant, namespace, topic = rest.split("/", 2)
    names = {"domain": domain, "tenant": tenant, "namespace": namespace, "topic": topic}
    if row.scalable:
        del names["domain"]
    path = "partitioned-stats" if row.partitions else "stats"
    template = f"{_SCALABLES}/{{topic}}/stats" if row.scalable else f"{TOPIC}/{path}"
    if not visit.api.may("GET", template, **names):
        return
    query: dict[str, str] = {}
    if not row.scalable:
        query = {"excludePublishers": "false", "subscriptionBacklogSize": "false"}
    if row.partitions:
        query["perPartition"] = "false"
    try:
        row.stats = await visit.api.get(template, query, **names)
    except Refused as refused:
        row.problem = refused.reason


VIEWS: Final = (View("GET", _PATH, listing), View("GET", f"{_PATH}/go", go))
