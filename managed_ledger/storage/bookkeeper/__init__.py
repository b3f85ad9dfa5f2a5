"""Ledgers on Apache BookKeeper's bookies, with their metadata in Apache ZooKeeper.

The stored bytes are those of BookKeeper's own client, so that each can read what the other wrote.
"""
