"""`pybroker doctor`: checks whether this machine is fit for a broker, and advises if not."""
