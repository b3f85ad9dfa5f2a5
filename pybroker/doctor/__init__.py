"""`pybroker doctor`: checks if this machine is fit for a broker, and says what to do if not."""
