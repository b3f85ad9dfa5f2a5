"""Several brokers on simulated bookies and a simulated ZooKeeper.

Clients and checks are those of the simulation of one broker.
"""
