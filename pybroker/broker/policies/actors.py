"""Who acts on policies that concern a topic as a whole, a file each."""

from managed_ledger.housekeeper import Housekeeper
from pybroker.broker.policies.following import Actor
from pybroker.broker.policies.retention import KeptMessages
from pybroker.runtime import Clock


def acting(housekeeper: Housekeeper, clock: Clock) -> tuple[Actor, ...]:
    return (KeptMessages(),)
