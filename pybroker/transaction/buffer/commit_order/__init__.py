"""Transactions kept aside until they commit; they become visible in the order of commits."""
