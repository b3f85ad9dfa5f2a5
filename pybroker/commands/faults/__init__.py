"""`pybroker faults`: fault points, rules at them, and the clock of a broker in test mode."""
