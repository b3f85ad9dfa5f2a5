"""Several brokers on one BookKeeper and ZooKeeper: which are alive, and which topics each one
serves.
"""
