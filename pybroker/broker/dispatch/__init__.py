"""Dispatch: which entries go to which consumer of a subscription, and in what order."""
