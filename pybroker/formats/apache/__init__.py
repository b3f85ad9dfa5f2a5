"""Tenants, namespaces and topics' records as Apache Pulsar has them in ZooKeeper."""
