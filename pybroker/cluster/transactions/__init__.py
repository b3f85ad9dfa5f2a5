"""Transactions over several brokers: coordinators here and elsewhere, and the ends of each part."""
