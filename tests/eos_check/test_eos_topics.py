"""The topics of a run."""

from pybroker.client import Client
from pybroker.eos_check.topics import Topics
from pybroker.testing import broker


def test_topics_of_other_tenants_are_prepared():
    """A pipeline's code may contain the names of its topics."""
    with broker(http=True) as running:
        topics = Topics(running.service_url, running.admin_url)
        topics.prepare("persistent://acme/billing/orders", ["persistent://acme/billing/invoices"])
        topics.prepare("persistent://acme/billing/others", [])
        with Client(running.service_url) as client:
            client.create_producer("persistent://acme/billing/orders").send(b"one")
        assert topics.backlogs("persistent://acme/billing/invoices") == {}
