"""Namespaces that another broker has just created: this broker learns of them a little later."""

from pybroker.broker.topics import Topics


async def check_namespace(topics: Topics, namespace: str) -> None:
    """Like `Tenants.check_namespace`, but with all that other brokers wrote before the call. Raises
    NotFound, ServiceNotReady.
    """
    if not topics.tenants.has_namespace(namespace):
        await topics.ownership.refreshed()
    topics.tenants.check_namespace(namespace)
