"""Durable logs and cursors: the managed-ledger abstraction, independent of any wire protocol."""
