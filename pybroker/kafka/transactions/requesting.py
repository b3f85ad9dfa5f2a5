"""What the requests of transactions have in common: whose producer they name, and how they fail.

Clients act upon the errors: after INVALID_PRODUCER_EPOCH and TRANSACTION_ABORTABLE they abort and
go on, PRODUCER_FENCED is the end. Requests of versions that do not know the newer codes get the
older ones.
"""

from typing import Final

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.transactions.live_producer import Claim
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import ProducerKey
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId

# The first versions that know PRODUCER_FENCED (KIP-588) and TRANSACTION_ABORTABLE (KIP-890).
_FENCED: Final = {22: 4, 24: 2, 25: 2, 26: 2, 28: 0}
_ABORTABLE: Final = {22: 5, 24: 4, 25: 4, 26: 4, 28: 4}


def client_of(services: KafkaServices, session: Session) -> TxnClient:
    version = f"Kafka {session.software_name}-{session.software_version}".rstrip("-")
    if session.identity is None:
        return TxnClient(peer=session.peer, version=version)
    roles = services.config.super_user_roles
    is_super_user = all(role in roles for role in session.identity.roles)
    owner = session.identity.acting
    return TxnClient(owner, None if is_super_user else owner, session.peer, version)


def id_of(session: Session, name: str) -> TransactionalId:
    return TransactionalId(None if session.identity is None else session.identity.acting, name)


def claim_of(session: Session, name: str, producer_id: int, epoch: int) -> Claim:
    return Claim(id_of(session, name), ProducerKey(producer_id, epoch))


def claim_in(session: Session, request: Request) -> Claim:
    name, key = request["transactional_id"], request["producer_id"]
    return claim_of(session, name, key, request["producer_epoch"])


def code_for(request: Request, code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE[request.key]:
        code = ErrorCode.PRODUCER_FENCED  # as Kafka's, whose timeout raises the epoch
    if code is ErrorCode.PRODUCER_FENCED and request.version < _FENCED[request.key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
