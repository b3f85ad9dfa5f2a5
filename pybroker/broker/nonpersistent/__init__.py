"""Non-persistent topics: messages that no consumer can take at once are dropped."""
