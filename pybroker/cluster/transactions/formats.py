"""Brokers of a cluster store transactions in Apache Pulsar's formats, as its brokers do."""

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.pulsar_log import PulsarLog
from pybroker.transaction.coordinator.transaction_log import TransactionLog


def use_pulsars_formats(coordinators: Coordinators) -> None:
    """Call it before they recover."""
    coordinators.open_log = _open_log


async def _open_log(
    coordinator_id: int, factory: ManagedLedgerFactory, metadata: MetadataStore
) -> TransactionLog:
    pulsar = PulsarLog(coordinator_id)
    return await TransactionLog.open(coordinator_id, factory, metadata, pulsar)
