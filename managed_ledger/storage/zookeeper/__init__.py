"""A small asyncio client of Apache ZooKeeper: nodes, compare-and-set, watches, one session.

It replaces kazoo, which uses threads, cannot run in a simulated world, and has no recursive watches
in its latest release (2.11).
"""
