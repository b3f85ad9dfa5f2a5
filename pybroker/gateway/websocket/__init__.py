"""Apache Pulsar's WebSocket API: a channel and a client for each producer, consumer or reader."""
