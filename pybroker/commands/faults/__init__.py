"""`pybroker faults`: fault points, their rules, and the clock of a broker in test mode."""
