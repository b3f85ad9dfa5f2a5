"""Lists of transactions over all brokers: live and ended ones, those that block readers, and those
of transactional ids.

Each broker sends the first part of its own sorted list, long enough for the requested page; this
broker merges the parts. What a transaction holds and blocks is the sum over the brokers of its
topics. Each broker sends such sums for at most 10,000 transactions of other brokers. A list that is
sorted by such a sum is made of the first 500 of each broker's list.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.http.permitted import identity_of, target_of
from pybroker.admin.operation import Endpoint
from pybroker.admin.over_brokers.everybody import Whole
from pybroker.admin.routes.blocking import limit_of
from pybroker.admin.routes.live_transaction import JOINED, paging
from pybroker.admin.services import AdminServices
from pybroker.admin.stats.transactions import SUMMED, Stats, add_tally
from pybroker.security.authorization import Need

_BASE: Final = "/admin/v3/transactions"
_MOST: Final = 500  # transactions of one broker's list


class TransactionLists:
    """`all_of_them` returns what each broker answers, this one first; see EverybodyRoutes."""

    def __init__(
        self,
        services: AdminServices,
        all_of_them: Callable[[Request, Endpoint], Awaitable[list[Any]]],
    ) -> None:
        self._authorizer = services.authorizer
        self._all = all_of_them

    def by_route(self) -> dict[tuple[str, str], Whole]:
        return {
            ("GET", f"{_BASE}/live"): self._live,
            ("GET", f"{_BASE}/ended"): self._ended,
            ("GET", f"{_BASE}/blocking"): self._blocking,
            ("GET", f"{_BASE}/transactionalIds"): self._ids,
            ("GET", f"{_BASE}/transactionalIds/{{id}}"): self._id,
        }

    async def _live(self, request: Request, own: Endpoint) -> Stats:
        first, limit = _within_reach(request)
        summed = SUMMED.get(request.query_params.get("sort") or "age")
        most = first + limit if summed is None else _MOST
        answers = await self._all(self._first_part(request, most), own)
        described = _joined(answers, "transactions")
        rows = {each["txnId"]: each for each in described}
        keys = dict(
            zip([each["txnId"] for each in described], _joined(answers, "keys"), strict=True)
        )
        for answer in answers:
            for txn_id, tally in answer.get("elsewhere", {}).items():
                if (row := rows.get(txn_id)) is not None:
                    add_tally(row, tally)
        if summed is not None:
            keys = {txn_id: row[summed] for txn_id, row in rows.items()}
        descends = request.query_params.get("order") != "asc"
        ordered = sorted(rows.values(), key=lambda row: keys[row["txnId"]], reverse=descends)
        return {
            "timestamp": answers[0]["timestamp"],
            "live": _sum(answers, "live"),
            "matching": _sum(answers, "matching"),
            "transactions": ordered[first : first + limit],
        }

    async def _ended(self, request: Request, own: Endpoint) -> Stats:
        first, limit = _within_reach(request)
        answers = await self._all(self._first_part(request, first + limit), own)
        rows = _joined(answers, "transactions")
        rows.sort(key=lambda row: row["endTimestamp"], reverse=True)
        return {
            "timestamp": answers[0]["timestamp"],
            "matching": _sum(answers, "matching"),
            "transactions": rows[first : first + limit],
        }

    async def _blocking(self, request: Request, own: Endpoint) -> Stats:
        answers = await self._all(request, own)
        topics = _joined(answers, "topics")
        topics.sort(key=lambda topic: topic["blockedEntries"], reverse=True)
        return {
            "timestamp": answers[0]["timestamp"],
            "blockedTopics": _sum(answers, "blockedTopics"),
            "blockedEntries": _sum(answers, "blockedEntries"),
            "topics": topics[: limit_of(request)],
        }

    async def _ids(self, request: Request, own: Endpoint) -> list[Stats]:
        """Every broker knows all ids, but only the open transactions of its own coordinators. The
        rows are those of this broker, which knows what the caller may see.
        """
        first, *others = await self._all(request, own)
        rows: dict[tuple[str | None, str], Stats] = {_key(row): row for row in first}
        for row in (row for answer in others for row in answer):
            if _key(row) in rows:
                _add_open(rows[_key(row)], row)
        return list(rows.values())

    async def _id(self, request: Request, own: Endpoint) -> Stats:
        if "owner" not in request.query_params and IDENTITY in request.scope:
            query = {**request.query_params, "owner": identity_of(request).acting}
            request = Request({**request.scope, "query_string": urlencode(query).encode()})
        answers = await self._all(request, own)
        shown: Stats = answers[0]
        for row in answers[1:]:
            _add_open(shown, row)
        return shown

    def _first_part(self, request: Request, most: int) -> Request:
        """The request for the first `most` of each broker's list. Other brokers know only that a
        broker asks, so the query names the principal whose transactions the caller may see.
        """
        query = {**request.query_params, "page": "1", "limit": str(most)}
        authorizer, identity = self._authorizer, None
        if authorizer is not None:
            identity = identity_of(request)
            if not authorizer.may(identity, Need.SUPER_USER, target_of(request)):
                query["principal"] = identity.acting
        return Request({**request.scope, "query_string": urlencode(query).encode(), JOINED: True})


def _key(row: Stats) -> tuple[str | None, str]:
    return row["owner"], row["transactionalId"]


def _add_open(row: Stats, there: Stats) -> None:
    """Adds without duplicates: two brokers may list a transaction whose coordinator is moving."""
    row["openTransactions"] = sorted({*row["openTransactions"], *there["openTransactions"]})


def _within_reach(request: Request) -> tuple[int, int]:
    """The page's first index and length. Raises HTTPException if the page is out of reach."""
    first, limit = paging(request)
    if first + limit > _MOST:
        raise HTTPException(
            400,
            f"The list of several brokers ends after {_MOST} transactions: narrow it with state, "
            "topic, owner or minAgeMs",
        )
    return first, limit


def _joined(answers: Iterable[Stats], name: str) -> list[Stats]:
    return [each for answer in answers for each in answer[name]]


def _sum(answers: Iterable[Stats], name: str) -> int:
    return sum(answer[name] for answer in answers)
