"""AddOffsetsToTxn: a group whose offsets the transaction will commit."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import claim_in, client_of, code_for


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    client, claim = client_of(services, session), claim_in(session, request)
    try:
        require_group(services, session, request["group_id"])
        await services.transactions.add_group(client, claim, request["group_id"])
    except KafkaError as error:
        return {"error_code": code_for(request, error.code)}
    return {"error_code": ErrorCode.NONE}
