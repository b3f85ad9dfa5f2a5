"""Deleting topics and subscriptions, with everything in the storage that belongs to them."""
