"""The admin REST API, under the routes and field names of Apache Pulsar's, and /metrics."""
