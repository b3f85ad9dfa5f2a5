"""`pybroker doctor`: is this machine fit for a broker, and if not, what to do about it."""
