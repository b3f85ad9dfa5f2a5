"""RecordBatches (magic 2) <-> bytes: no topic, no connection, and nothing of Pulsar's formats."""
