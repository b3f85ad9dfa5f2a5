"""Transactions in a topic's own log: they show in the order of the log."""
