"""Connections to brokers: lookup, a single connection, reconnecting."""
