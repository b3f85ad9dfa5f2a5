"""What `pybroker` can be told on the command line, beside running a broker: a room a command."""
