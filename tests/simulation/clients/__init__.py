"""The client processes: each does one kind of work and writes down what it was told."""
