"""This broker's topics and subscriptions as participants of transactions."""
