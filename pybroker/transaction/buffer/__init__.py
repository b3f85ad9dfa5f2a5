"""A topic's transactions: which are open, and which entries are hidden."""
