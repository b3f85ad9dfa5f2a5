"""EndTxn: commit or abort. The answer comes when every participant has followed.

Versions: from 5 on the answer has the producer's next epoch (KIP-890), and a transaction that has
not begun may be aborted.
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import claim_in, client_of, code_for
from pybroker.transaction.txn_status import TxnAction

_BUMPS: Final = 5


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    client, claim = client_of(services, session), claim_in(session, request)
    action = TxnAction.COMMIT if request["committed"] else TxnAction.ABORT
    try:
        key = await services.transactions.end(client, claim, action, request.version >= _BUMPS)
    except KafkaError as error:
        return {"error_code": code_for(request, error.code)}
    return {
        "error_code": ErrorCode.NONE,
        "producer_id": key.producer_id,
        "producer_epoch": key.epoch,
    }
