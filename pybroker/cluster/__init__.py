"""Several brokers on one BookKeeper and ZooKeeper: who is there, and who serves what."""
