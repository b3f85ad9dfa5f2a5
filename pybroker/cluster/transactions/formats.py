"""Brokers of a cluster store transactions in Apache Pulsar's formats, and read Apache's records.

The storage needs `message_count`, which counts the messages in an entry of Apache's broker, and
FOREIGN, the tag for entries of Apache's brokers.
"""

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.transaction.buffer.transactional_entries import FOREIGN
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.log.pulsar_log import PulsarLog
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.wire.message_metadata import message_count

__all__ = ["FOREIGN", "message_count", "use_pulsars_formats"]


def use_pulsars_formats(coordinators: Coordinators) -> None:
    """Call it before the coordinators recover."""
    coordinators.open_log = _open_log


async def _open_log(
    coordinator_id: int, factory: ManagedLedgerFactory, metadata: MetadataStore
) -> TransactionLog:
    pulsar = PulsarLog(coordinator_id)
    return await TransactionLog.open(coordinator_id, factory, metadata, pulsar)
