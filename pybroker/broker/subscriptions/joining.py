"""Checks whether a consumer may join a subscription, and whether it may delete it."""

from collections.abc import Sequence
from typing import Protocol

from pybroker.base.errors import ConsumerBusy, MetadataError
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType


class Joined(Protocol):
    """A subscription; `str` names it."""

    @property
    def kind(self) -> SubscriptionType | None: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...


def check_joinable(subscription: Joined, kind: SubscriptionType) -> None:
    """Raises ConsumerBusy if the consumers have another type, or there is one and the type is
    Exclusive.
    """
    if not subscription.consumers:
        return
    if kind is not subscription.kind:
        raise ConsumerBusy(
            f"{subscription} has consumers of a type other than {kind.name}: use their type, or "
            "close them"
        )
    if kind is SubscriptionType.EXCLUSIVE:
        raise ConsumerBusy(
            f"{subscription} is Exclusive and already has a consumer: close it first"
        )


def check_sole_consumer(subscription: Joined, consumer: Consumer, force: bool) -> None:
    """Raises MetadataError, as Apache Pulsar does, if there are other consumers and `force` is
    false.
    """
    if not force and any(other is not consumer for other in subscription.consumers):
        raise MetadataError(
            f"{subscription} has other consumers: close them, or unsubscribe with force"
        )
