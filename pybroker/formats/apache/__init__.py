"""Tenants, namespaces and topics as Apache Pulsar stores them in ZooKeeper."""
