"""Tenants, namespaces, topics, schemas and deduplication as Apache Pulsar stores them."""
