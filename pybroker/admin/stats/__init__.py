"""What the admin API says of topics, ledgers and rates, under the field names of Apache Pulsar."""
