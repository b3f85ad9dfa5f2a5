"""Statistics of topics, ledgers and rates, under Apache Pulsar's field names."""
