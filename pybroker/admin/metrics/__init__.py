"""/metrics: Apache Pulsar's names, so that its dashboards work, and pybroker's extensions.

Each area is a module: its rows, which describe the metrics, and functions that add the samples.
`table` has all rows; docs/metrics.md is generated from it.
"""
