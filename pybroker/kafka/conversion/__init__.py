"""Pulsar's entries <-> Kafka's RecordBatches, by content: no topic, no log, no connection."""
