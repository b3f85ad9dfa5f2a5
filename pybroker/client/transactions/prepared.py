"""A prepared transaction, as its broker lists it."""

from dataclasses import dataclass

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """It waits for a decision: `attach_transaction(found.txn_id)`, then `commit` or `abort`."""

    txn_id: TxnId
    name: str
    owner: str | None  # the role that began it
    prepared_ms: int  # milliseconds since 1970
    age_ms: int

    @classmethod
    def of(cls, coordinator_id: int, listed: pb.PreparedTxn) -> "PreparedTransaction":
        return cls(
            TxnId(coordinator_id, listed.txnid_least_bits),
            listed.name,
            listed.owner if listed.HasField("owner") else None,
            listed.prepared_ms,
            listed.age_ms,
        )
