"""The life of a persistent topic: its log, its producers, what is published and what is read."""
