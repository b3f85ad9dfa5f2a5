"""Committed offsets and groups as records: the log of the broker that keeps them."""
