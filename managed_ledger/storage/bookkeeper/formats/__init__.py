"""Keys and values as Apache Pulsar has them in ZooKeeper, by families."""
