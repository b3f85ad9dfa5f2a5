"""Transactions kept aside until they commit: they show in the order of their commits."""
