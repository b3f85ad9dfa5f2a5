"""Transactions of several coordinators that commit by one decision."""
