"""What transactions have acknowledged on a subscription, until they end."""
