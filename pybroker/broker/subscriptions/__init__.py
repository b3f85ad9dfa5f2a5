"""Subscriptions and their consumers: positions, acknowledgements, also in transactions."""
