"""The admin REST API, with Apache Pulsar's routes and field names, and /metrics."""
