"""Tenants, namespaces, partitioned topics and permissions: small records by name."""
