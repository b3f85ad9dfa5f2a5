"""Kafka's protocol on the same topics; nothing imports it unless Kafka clients are to be served."""
