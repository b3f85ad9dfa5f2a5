"""InitProducerId: an id for an idempotent or transactional producer.

- 3: a producer may say its id and epoch, to go on after an error (KIP-360). Without a transactional
  id it gets a new one.
- 6: `enable2_pc` begins transactions without a timeout, and `keep_prepared_txn` leaves the one that
  is open to the new producer, who learns whose it is (KIP-939). Both are for the roles that may
  prepare, as in Kafka for those with the operation TWO_PHASE_COMMIT.
"""

from typing import Any, Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.kafka.errors import ErrorCode, KafkaError, error_code
from pybroker.kafka.permissions import actor_of
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.requesting import client_of, code_for, id_of
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import Inited, ProducerKey
from pybroker.logs import audit
from pybroker.security.preparing import may_prepare, why_not_prepare
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId

_NONE: Final = -1
_NOBODY: Final = ProducerKey(_NONE, _NONE)


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    try:
        if request["transactional_id"] is None:
            found = Inited(ProducerKey(await services.producer_ids.new(), 0))
        else:
            found = await _transactional(services, session, request)
    except ManagedLedgerError as error:
        return _failed(error_code(error))
    except KafkaError as error:
        return _failed(code_for(request, error.code))
    ongoing = found.ongoing or _NOBODY
    return {
        "error_code": ErrorCode.NONE,
        "producer_id": found.key.producer_id,
        "producer_epoch": found.key.epoch,
        "ongoing_txn_producer_id": ongoing.producer_id,
        "ongoing_txn_producer_epoch": ongoing.epoch,
    }


def _failed(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}


async def _transactional(services: KafkaServices, session: Session, request: Request) -> Inited:
    client, id = client_of(services, session), id_of(session, request["transactional_id"])
    claimed = ProducerKey(request["producer_id"], request["producer_epoch"])
    has_two_phases, keeps = request["enable2_pc"], request["keep_prepared_txn"]
    if has_two_phases or keeps:
        _require_preparing(services, session, client, id)
    return await services.transactions.init(
        client,
        id,
        None if has_two_phases else request["transaction_timeout_ms"],
        None if claimed.producer_id == _NONE else claimed,
        keeps,
    )


def _require_preparing(
    services: KafkaServices, session: Session, client: TxnClient, id: TransactionalId
) -> None:
    """Raises KafkaError (TRANSACTIONAL_ID_AUTHORIZATION_FAILED) unless the client may prepare
    transactions.
    """
    if may_prepare(services.topics.policies.config, client.owner, client.principal):
        return
    code, why = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, why_not_prepare(client.owner)
    audit.refused(actor_of(session), "two-phase commit", id.name[:200], code.name, why)
    raise KafkaError(code, why)
