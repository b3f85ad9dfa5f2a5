"""The client processes: each does one kind of work and records the answers."""
