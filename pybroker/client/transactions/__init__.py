"""Transactions as a client sees them, and their coordinators at the brokers."""
