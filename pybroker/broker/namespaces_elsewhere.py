"""Namespaces that another broker has just created: this one learns of them a little later."""

from pybroker.broker.topics import Topics


async def check_namespace(topics: Topics, namespace: str) -> None:
    """As `Tenants.check_namespace`, including what other brokers wrote before. Raises NotFound,
    ServiceNotReady.
    """
    if not topics.tenants.has_namespace(namespace):
        await topics.ownership.refreshed()
    topics.tenants.check_namespace(namespace)
