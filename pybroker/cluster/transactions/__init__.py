"""Transactions over several brokers: their coordinators, participants, groups and sessions."""
