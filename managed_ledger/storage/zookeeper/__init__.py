"""A small asyncio client of Apache ZooKeeper: nodes, compare-and-set, watches, one session.

Not kazoo, because it runs threads, and its latest release (2.11) has no recursive watches; and this
one runs unchanged in a simulated world.
"""
