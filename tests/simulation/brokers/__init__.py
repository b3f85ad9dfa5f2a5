"""Several brokers on simulated bookies and a simulated ZooKeeper, with the clients and checks of
the whole simulation.
"""
