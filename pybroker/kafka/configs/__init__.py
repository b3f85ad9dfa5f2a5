"""Kafka's configs of topics and brokers: what each is here, shown and set."""
