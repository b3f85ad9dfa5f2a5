"""One partition's log as Kafka's clients see it: offsets, appends, reads; no connection."""
