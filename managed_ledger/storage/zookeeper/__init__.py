"""A small asyncio client of Apache ZooKeeper: nodes, compare-and-set, watches, one session.

Own code, because kazoo runs threads, and its latest release (2.11) has no recursive watches; and
because this one runs in a simulated world as it is.
"""
