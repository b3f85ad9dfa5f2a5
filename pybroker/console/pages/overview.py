"""An overview of the broker: rates, backlog, storage, clients and the process."""

import time
from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.responses import Response

from pybroker.console.figures import Figures, broker_figures, highest, total
from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console"
_SOONEST_S: Final = 2.0
_SHARE: Final = 20  # figures are reused for this many times the time that they took
_LONG_S: Final = 0.2
_LAST: Final = "overview.last"
_CHARTS: Final = (
    ("rate_in", "rate_out"),
    ("throughput_in", "throughput_out"),
    ("backlog",),
    ("memory",),
    ("loop_lag",),
)


async def overview(visit: Visit) -> Response:
    return await visit.render("overview.html", **await _figures(visit))


async def live(visit: Visit) -> Response:
    return await visit.render("overview_live.html", **await _figures(visit))


async def _figures(visit: Visit) -> Mapping[str, Any]:
    """Streams share recent figures; all visitors share them if they took long to compute."""
    now_s = time.monotonic()
    last = visit.kept.get(_LAST, {"until_s": now_s})
    if now_s < last["until_s"] and (visit.is_stream or last["took_s"] > _LONG_S):
        return cast(Mapping[str, Any], last)
    figures = await broker_figures(visit.api)
    took_s = time.monotonic() - now_s
    shown = _shown(figures)
    sample = {name: shown[name] for group in _CHARTS for name in group}
    visit.kept[_LAST] = found = {
        **shown,
        "sample": {"at_s": visit.services.clock.now_ms() / 1000, **sample},
        "every_s": max(_SOONEST_S, round(took_s * _SHARE, 1)),
        "took_s": took_s,
        "until_s": now_s + took_s * _SHARE,
    }
    return found


def _shown(figures: Figures) -> dict[str, float | None]:
    broker = "pulsar_broker_"
    return {
        "rate_in": total(figures, f"{broker}rate_in"),
        "rate_out": total(figures, f"{broker}rate_out"),
        "throughput_in": total(figures, f"{broker}throughput_in"),
        "throughput_out": total(figures, f"{broker}throughput_out"),
        "backlog": total(figures, f"{broker}msg_backlog"),
        "storage": total(figures, f"{broker}storage_size"),
        "storage_free": total(figures, "pybroker_storage_free_bytes"),
        "storage_full": total(figures, "pybroker_storage_full"),
        "topics": total(figures, f"{broker}topics_count"),
        "subscriptions": total(figures, f"{broker}subscriptions_count"),
        "producers": total(figures, f"{broker}producers_count"),
        "consumers": total(figures, f"{broker}consumers_count"),
        "connections": total(figures, "pulsar_active_connections"),
        "memory": total(figures, "process_resident_memory_bytes"),
        "loop_lag": total(figures, "pybroker_loop_lag_seconds_max"),
        "commit": total(figures, "pybroker_commit_seconds_recent"),
        "open_transactions": total(figures, "pulsar_txn_active_count"),
        "oldest_transaction": highest(figures, "pybroker_txn_oldest_open_seconds"),
        "blocked_topics": total(figures, "pybroker_txn_blocked_topics"),
    }


PAGE: Final = Page(
    "Overview",
    _PATH,
    (View("GET", _PATH, overview), View("GET", f"{_PATH}/overview/live", live, live=True)),
)
