"""The fault points of a connection. Only brokers with fault points import this package."""
