"""`pybroker hand-over`: leaves a cluster so that Apache Pulsar's brokers take over."""
