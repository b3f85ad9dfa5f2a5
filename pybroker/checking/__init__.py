"""`pybroker check`: reports whether a data directory is intact, and what is lost if it is not."""
