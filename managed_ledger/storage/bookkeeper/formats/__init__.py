"""Keys and values in the formats of Apache Pulsar in ZooKeeper, grouped into families."""
