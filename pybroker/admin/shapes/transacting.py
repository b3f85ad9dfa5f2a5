"""Transactions that visitors begin and end."""

from typing import Final

from pybroker.base.json_schema import COUNT, TEXT, fields, record, taken, whole
from pybroker.transaction.coordinator.live_transaction import MAX_NAME_CHARS

MAX_TIMEOUT_MS: Final = 2**53
BEGIN: Final = taken(
    {"timeoutMs": whole(1, MAX_TIMEOUT_MS), "namespace": TEXT}, title="NewTransaction"
)
BEGUN: Final = record(
    "BegunTransaction",
    {**fields(TEXT, "txnId path"), **fields(COUNT, "most least timeoutMs")},
)
PREPARE: Final = taken({"name": {**TEXT, "maxLength": MAX_NAME_CHARS}}, title="PrepareTransaction")
OUTCOME: Final = record(
    "TransactionOutcome",
    {**fields(TEXT, "txnId status abortReason")},
    optional=("abortReason",),
)
TXN: Final = {"type": "string", "maxLength": 60, "pattern": r"^\(?[0-9]{1,20}[:,][0-9]{1,20}\)?$"}
