"""Connections to brokers: which broker, one connection, coming back after it broke."""
