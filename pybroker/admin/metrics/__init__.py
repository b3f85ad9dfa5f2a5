"""/metrics: Apache Pulsar's names, so that its dashboards work, and our own beside them.

Each area is a module: its rows, which say what there is, and functions that add the samples.
`table` has all rows; docs/metrics.md is made from it.
"""
