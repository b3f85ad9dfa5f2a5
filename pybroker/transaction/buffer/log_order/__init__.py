"""Transactions in a topic's own log: they become visible in the order of the log."""
