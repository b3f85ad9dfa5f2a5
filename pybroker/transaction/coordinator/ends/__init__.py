"""The end of a transaction: its deadline, and telling its participants until all have ended it."""
