"""Live transactions of all coordinators, recently ended ones, the timeline of one transaction, and
a topic's log by transactions. Superusers see all of them, others only their own.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import existing
from pybroker.admin.http.permitted import check_owner, identity_of, target_of
from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import asked, number, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import live_transactions as shapes
from pybroker.admin.stats.blocking import blocked_entries
from pybroker.admin.stats.segments import cause, segments
from pybroker.admin.stats.timeline import participants, tally_of
from pybroker.admin.stats.transactions import (
    SORTS,
    LiveTransactions,
    Row,
    Stats,
    Tally,
    Wanted,
    chosen,
    described_tally,
    ended_one,
    live_one,
)
from pybroker.base.errors import TransactionNotFound
from pybroker.base.json_schema import COUNT, TEXT, choice, fields, whole
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.other_brokers import ASKED_BY_A_BROKER
from pybroker.broker.persistent.topic import Topic
from pybroker.security.authorization import Need
from pybroker.transaction.buffer.buffer_stats import OngoingTransaction
from pybroker.transaction.txn_status import TxnStatus

_BASE: Final = "/admin/v3/transactions"
_TOPIC: Final = "{tenant:segment}/{namespace:segment}/{topic:form}"
_DESCRIBED_A_TURN: Final = 20
_MOST: Final = 500
_UNLESS_SAID: Final = 100
_SHOWN_ON_A_TOPIC: Final = 50
JOINED: Final = "pybroker.joined"  # key in the scope of a request
_MOST_REMOTE: Final = 10_000  # transactions of other brokers in one answer


class LiveTransactionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._coordinators = services.coordinators
        self._authorizer = services.authorizer
        self._clock = services.clock
        self._live = LiveTransactions(services.topics, services.coordinators)

    def routes(self) -> list[DescribedRoute]:
        paging = {"page": whole(1, 10**9), "limit": whole(1, _MOST)}
        query = paging | {"state": shapes.STATUS, **fields(TEXT, "topic owner principal")}
        ordered = {"minAgeMs": COUNT, "sort": choice(*SORTS), "order": choice("asc", "desc")}
        one = f"{_BASE}/timeline/{{most:int}}/{{least:int}}"
        limit = {"limit": whole(1, _MOST)}
        return [
            route("GET", f"{_BASE}/live", self.live, shapes.LIVE, query=query | ordered),
            route("GET", f"{_BASE}/ended", self.ended, shapes.ENDED, query=query),
            route("GET", one, self.timeline, shapes.TIMELINE, query=limit),
            route("GET", f"{_BASE}/segments/{_TOPIC}", self.segments, shapes.SEGMENTS),
        ]

    # -- lists

    async def live(self, request: Request) -> Stats:
        """Transactions of all coordinators that have not ended. ?topic= and ?owner= match parts of
        names, ?principal= the whole owner. ?sort= selects the order, with ?order=desc (the default)
        or asc.
        """
        first, limit = paging(request)
        wanted, key = self._wanted(request), SORTS.get(asked(request, "sort") or "age")
        if (least_ms := number(request, "minAgeMs", 0)) > 0:
            wanted = wanted._replace(opened_before_ms=self._clock.now_ms() - least_ms)
        if key is None:
            raise HTTPException(400, f"sort must be one of {', '.join(SORTS)}")
        rows, remote = await self._live.walked()
        found = await chosen(rows, wanted)
        found.sort(key=key, reverse=asked(request, "order") != "asc")
        shown = found[first : first + limit]
        pace, described, now_ms = Pace(_DESCRIBED_A_TURN), list[Stats](), self._clock.now_ms()
        for row in shown:
            await pace.step()
            described.append(live_one(row, now_ms))
        mine = wanted.only_of
        live = len(rows) if mine is None else sum(each.transaction.owner == mine for each in rows)
        answer = {
            "timestamp": now_ms,
            "live": live,
            "matching": len(found),
            "transactions": described,
        }
        if self._is_joined(request):
            answer["keys"] = [key(row) for row in shown]
            answer["elsewhere"] = _on_other_brokers(remote, now_ms)
        return answer

    def _is_joined(self, request: Request) -> bool:
        """Whether this broker or another one joins the answers of all brokers."""
        by_another = ASKED_BY_A_BROKER in request.headers and self._sees_all(request)
        return by_another or JOINED in request.scope

    async def ended(self, request: Request) -> Stats:
        """Transactions that ended within the last hour, the latest first: at most 1,000, and none
        that ended before a restart.
        """
        first, limit = paging(request)
        wanted = self._wanted(request)
        found = [e for e in self._coordinators.ended if wanted.has(e.transaction, e.status)]
        pace, described = Pace(_DESCRIBED_A_TURN), list[Stats]()
        for each in found[first : first + limit]:
            await pace.step()
            described.append(ended_one(each))
        return {
            "timestamp": self._clock.now_ms(),
            "matching": len(found),
            "transactions": described,
        }

    def _wanted(self, request: Request) -> Wanted:
        state = asked(request, "state")
        if state is not None and state not in TxnStatus.__members__:
            raise HTTPException(400, f"state must be one of {', '.join(TxnStatus.__members__)}")
        return Wanted(
            None if state is None else TxnStatus[state],
            asked(request, "topic") or "",
            asked(request, "owner") or "",
            None,
            asked(request, "principal") if self._sees_all(request) else identity_of(request).acting,
        )

    def _sees_all(self, request: Request) -> bool:
        return self._may(request, Need.SUPER_USER)

    def _may(self, request: Request, need: Need) -> bool:
        authorizer = self._authorizer
        if authorizer is None:
            return True
        return authorizer.may(identity_of(request), need, target_of(request))

    # -- one transaction

    async def timeline(self, request: Request) -> Stats:
        """A transaction from beginning to end, with up to ?limit= topics and as many subscriptions.
        Events before a restart are unknown, and so are transactions that ended over an hour ago.
        """
        txn_id = TxnId(request.path_params["most"], request.path_params["least"])
        if not txn_id.most < self._coordinators.count:
            raise HTTPException(404, f"There is no transaction coordinator {txn_id.most}")
        coordinator = await self._coordinators.get(txn_id.most)
        limit = _limit(request)
        if (transaction := coordinator.metadata(txn_id)) is not None:
            check_owner(self._authorizer, request, transaction.owner)
            retries = {each.participant: each for each in coordinator.retries_of(txn_id)}
            found = await participants(transaction, limit, self._topics, retries)
            row = Row(transaction, await tally_of(transaction, limit, self._topics))
            why = coordinator.why_aborted(txn_id)
            known = live_one(row, self._clock.now_ms()) | {"abortReason": why}
            return {"timestamp": self._clock.now_ms(), **known, "participants": found}
        ended = self._coordinators.ended.find(txn_id)
        check_owner(self._authorizer, request, None if ended is None else ended.transaction.owner)
        if ended is not None:
            found = await participants(ended.transaction, limit, self._topics, {})
            return {
                "timestamp": self._clock.now_ms(),
                **ended_one(ended),
                "participants": found,
            }
        status = coordinator.status(txn_id)
        if status is None:
            raise TransactionNotFound(f"Transaction {txn_id} does not exist or ended long ago")
        return {
            "timestamp": self._clock.now_ms(),
            "txnId": str(txn_id),
            "status": status.name,
            "abortReason": coordinator.why_aborted(txn_id),
        }

    # -- a topic

    async def segments(self, request: Request) -> Stats:
        """The readable part of a topic's log, what follows it, by transaction, and why readers
        stop. Only admins of the tenant see the owners of other principals' transactions.
        """
        topic = await existing(self._topics, topic_of(request))
        now_ms, ledger = self._clock.now_ms(), topic.ledger
        shows_all = self._may(request, Need.TENANT_ADMIN)
        me = None if shows_all else identity_of(request).acting

        def owner_shown(owner: str) -> str | None:
            return owner if me is None or owner == me else None

        first = ledger.first_position.before
        return {
            "topic": str(topic.name),
            "timestamp": now_ms,
            "firstPosition": str(ledger.first_position),
            "lastStablePosition": str(topic.max_read_position),
            "lastConfirmedEntry": str(ledger.last_confirmed),
            "readableEntries": ledger.count_between(first, topic.max_read_position),
            "blockedEntries": blocked_entries(topic),
            "openTransactions": topic.buffer.open_count,
            "cause": cause(
                topic,
                self._coordinators.begun,
                lambda owner: owner_shown(owner) or "another principal",
                now_ms,
            ),
            "transactions": [
                self._on_topic(topic, each, owner_shown, now_ms)
                for each in topic.buffer.ongoing(_SHOWN_ON_A_TOPIC)
            ],
            "segments": segments(topic),
        }

    def _on_topic(
        self,
        topic: Topic,
        ongoing: OngoingTransaction,
        owner_shown: Callable[[str], str | None],
        now_ms: int,
    ) -> Stats:
        txn_id, _, since_ms = ongoing
        first = topic.buffer.first_in_log(txn_id)
        transaction, oldest = self._coordinators.begun(txn_id), topic.buffer.oldest()
        held, owner, label, left_ms = topic.buffer.contents.of(txn_id), None, None, None
        if transaction is not None:
            owner = None if transaction.owner is None else owner_shown(transaction.owner)
            label = transaction.label if owner == transaction.owner else None
            if transaction.status is TxnStatus.OPEN:
                left_ms = transaction.left_ms(now_ms)
        return {
            "txnId": str(txn_id),
            "owner": owner,
            "label": label,
            "status": None if transaction is None else transaction.status.name,
            "firstPosition": None if first is None else str(first),
            "openTimestamp": since_ms,
            "ageMs": max(0, now_ms - since_ms),
            "timeLeftMs": left_ms,
            "messages": None if held is None else held.messages,
            "bytes": None if held is None else held.size_bytes,
            "holdsReadersBack": oldest is not None and oldest.txn_id == txn_id,
        }


def _on_other_brokers(tallies: Mapping[TxnId, Tally], now_ms: int) -> Stats:
    """What transactions of other brokers' coordinators hold and block on this broker's topics."""
    some = islice(tallies.items(), _MOST_REMOTE)
    return {str(each): described_tally(tally, now_ms) for each, tally in some}


def paging(request: Request) -> tuple[int, int]:
    limit, page = _limit(request), number(request, "page", 1)
    if page < 1:
        raise HTTPException(400, f"page is {page}; it must be at least 1")
    return (page - 1) * limit, limit


def _limit(request: Request) -> int:
    limit = number(request, "limit", _UNLESS_SAID)
    if not 1 <= limit <= _MOST:
        raise HTTPException(400, f"limit is {limit}; it must be 1 to {_MOST}")
    return limit
