"""Several brokers on one BookKeeper and ZooKeeper: the live brokers, and the topics of each."""
