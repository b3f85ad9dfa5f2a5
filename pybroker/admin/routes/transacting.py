"""Transactions for any language: begin, commit and abort over HTTP, and ask for the outcome.

A visitor's requests go through one client in this process, as those of an application go through
its connection: with its permissions, and with the limits of a connection for all of them together.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.http.permitted import identity_of, target_of
from pybroker.admin.http.visiting import answered_by_client, visitor_of
from pybroker.admin.operation import Body, DescribedRoute
from pybroker.admin.routing import asked, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import transacting as shapes
from pybroker.base.errors import TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.security.authorization import Need
from pybroker.transaction.txn_status import TxnStatus

_BASE: Final = "/admin/v3/transactions"
_TXN: Final = _BASE + "/{most:int}/{least:int}"
_USUAL_TIMEOUT_MS: Final = 60_000


class TransactingRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[DescribedRoute]:
        return [
            route(
                "POST",
                _BASE,
                self.begin,
                shapes.BEGUN,
                body=Body(shapes.BEGIN, required=False),
                refuses=(404, 405, 409, 429),
                changes=False,  # as messages, transactions are not audited
            ),
            *(
                route(
                    "POST",
                    f"{_TXN}/{name}",
                    handler,
                    shapes.OUTCOME,
                    refuses=(405, 409),
                    changes=False,
                )
                for name, handler in (("commit", self.commit), ("abort", self.abort))
            ),
            route(
                "POST",
                f"{_TXN}/prepare",
                self.prepare,
                shapes.OUTCOME,
                body=Body(shapes.PREPARE, required=False),
                refuses=(405, 409),
                changes=False,
            ),
            route("GET", _TXN, self.outcome, shapes.OUTCOME),
        ]

    async def begin(self, request: Request) -> dict[str, Any]:
        """Begin a transaction; the broker aborts it unless it has ended after `timeoutMs`. With
        `namespace`, topics of that namespace join it by themselves.
        """
        body, gateway = await read_object(request), await self._services.gateway()
        timeout_ms, namespace = body.get("timeoutMs") or _USUAL_TIMEOUT_MS, body.get("namespace")
        visitor = visitor_of(request)
        with answered_by_client():
            async with gateway.visitors.client(visitor) as at_broker:
                begun = await at_broker.client.new_transaction(timeout_ms, namespace=namespace)
                gateway.visitors.needs(visitor, timeout_ms / 1000)
        most, least = begun.txn_id
        return {
            "txnId": str(begun.txn_id),
            "path": f"{_BASE}/{most}/{least}",
            "most": most,
            "least": least,
            "timeoutMs": timeout_ms,
        }

    async def commit(self, request: Request) -> dict[str, Any]:
        """Commit a transaction. It is durable and visible with this answer; a repeated commit is
        answered alike.
        """
        return await self._end(request, commit=True)

    async def abort(self, request: Request) -> dict[str, Any]:
        """Abort a transaction of one's own: nothing of it becomes visible."""
        return await self._end(request, commit=False)

    async def prepare(self, request: Request) -> dict[str, Any]:
        """Prepare a transaction of one's own: all that it did is durable with this answer, and then
        only commit or abort end it, no timeout. Lists of live transactions show its `name`. A
        repeated prepare is answered alike.
        """
        body, txn_id, gateway = (
            await read_object(request),
            id_of(request),
            await self._services.gateway(),
        )
        with answered_by_client():
            async with gateway.visitors.client(visitor_of(request)) as at_broker:
                await at_broker.transaction(txn_id).prepare(body.get("name") or "")
        return {"txnId": str(txn_id), "status": TxnStatus.PREPARED.name}

    async def _end(self, request: Request, commit: bool) -> dict[str, Any]:
        txn_id, gateway = id_of(request), await self._services.gateway()
        with answered_by_client():
            async with gateway.visitors.client(visitor_of(request)) as at_broker:
                transaction = at_broker.transaction(txn_id)
                await (transaction.commit() if commit else transaction.abort())
        status = TxnStatus.COMMITTED if commit else TxnStatus.ABORTED
        return {"txnId": str(txn_id), "status": status.name}

    async def outcome(self, request: Request) -> dict[str, Any]:
        """The status of a transaction of one's own; of an ended one, as long as it is retained."""
        txn_id, coordinators = id_of(request), self._services.coordinators
        if txn_id.most >= coordinators.count:
            raise HTTPException(404, f"There is no transaction coordinator {txn_id.most}")
        coordinator = await coordinators.get(txn_id.most)
        self._check_owner(request, coordinators.ever_owner_of(txn_id))
        status = coordinator.status(txn_id)
        if status is None:
            raise TransactionNotFound(f"Transaction {txn_id} does not exist or ended long ago")
        reason = coordinator.why_aborted(txn_id)
        return {
            "txnId": str(txn_id),
            "status": status.name,
            **({"abortReason": reason} if reason else {}),
        }

    def _check_owner(self, request: Request, owner: str | None) -> None:
        """Raises AuthorizationError; the same whether the transaction exists or not."""
        authorizer = self._services.authorizer
        if authorizer is not None and owner != identity_of(request).acting:
            doing = "see the transaction"
            authorizer.require(identity_of(request), Need.SUPER_USER, target_of(request), doing)


def asked_txn(request: Request) -> TxnId | None:
    """The query parameter `txn`. Raises HTTPException."""
    said = asked(request, "txn")
    return None if said is None else parsed_txn(said)


def parsed_txn(text: str) -> TxnId:
    """`0:42`, or `(0,42)` as answers have it. Raises HTTPException."""
    try:
        return TxnId.parse(text)
    except ValueError as refused:
        raise HTTPException(400, str(refused)) from None


def id_of(request: Request) -> TxnId:
    params = request.path_params
    txn_id = TxnId(params["most"], params["least"])
    if not txn_id.is_possible():
        raise TransactionNotFound(f"Transaction {txn_id} does not exist: ids have 64 bits")
    return txn_id
