"""Transactions: the coordinator, the topics' transaction buffers, pending acknowledgements."""
