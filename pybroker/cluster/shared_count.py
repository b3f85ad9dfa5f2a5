"""The number of transaction coordinators is the cluster's, not that of a broker's configuration.

The metadata has it, as partitions of the assign topic, where Apache Pulsar's brokers have it, too.
The configuration decides only for the first broker. If it asks for more later, the number grows
when no other broker runs; otherwise the others would not serve the new coordinators, and
transactions of these would wait.
"""

import logging
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.broker.namespaces.tenants import Conflict, Tenants
from pybroker.cluster.live_brokers import DifferentSettings, LiveBrokers

log = logging.getLogger(__name__)
_KEY: Final = "transactionCoordinators"


async def share_coordinators(tenants: Tenants, live: LiveBrokers, config: BrokerConfig) -> None:
    """Call before this broker has joined. Raises DifferentSettings, ManagedLedgerError."""
    wanted = config.transaction_coordinators
    while (stored := tenants.stored_coordinators()) < wanted:
        others = await live.current()
        if stored and others:
            raise DifferentSettings(_KEY, str(wanted), next(iter(others)), str(stored))
        try:
            await tenants.set_partitions(COORDINATOR_ASSIGN, wanted)
        except Conflict:
            await tenants.refresh_partitions(COORDINATOR_ASSIGN)
    if stored > wanted:
        log.info("the cluster has %d transaction coordinators, as its metadata says", stored)
