"""A topic's transactions: the open ones, and the entries hidden from consumers."""
