"""The dependencies of a broker's persistent topics."""

from dataclasses import dataclass

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.broker.deletion.deletions import Deletions
from pybroker.broker.persistent.topic_measures import TopicMeasures
from pybroker.transaction.txn_status import TransactionOutcomes


@dataclass(frozen=True, slots=True)
class TopicServices:
    """One instance for the broker; each topic takes what it needs when it is loaded."""

    factory: ManagedLedgerFactory
    metadata: MetadataStore
    deletions: Deletions
    outcomes: TransactionOutcomes
    clock: Clock
    config: BrokerConfig
    measures: TopicMeasures
