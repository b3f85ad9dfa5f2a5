"""Keys and values as Apache Pulsar stores them in ZooKeeper, by families."""
