"""Groups of Kafka consumers: their members and generations; no sockets, no disk."""
