"""/metrics, with Apache Pulsar's names, so that its dashboards work, and pybroker's extensions.

Each module covers an area: its rows describe the metrics, and its functions add the samples.
`table` has all rows; docs/metrics.md is generated from it.
"""
