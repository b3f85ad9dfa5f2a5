"""Ledgers on Apache BookKeeper's bookies, with their metadata in Apache ZooKeeper.

What is stored is byte for byte what BookKeeper's own client stores, so that either reads what the
other wrote. Nothing outside of this package imports it yet.
"""
