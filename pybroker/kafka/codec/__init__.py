"""Bytes of Kafka's requests and responses <-> dicts; no socket, no clock, no topic."""
