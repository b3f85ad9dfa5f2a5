"""Handlers of questions about topics: lookups, partitions, schemas, lists of topics."""
