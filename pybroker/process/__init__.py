"""The broker process: the composition of its parts, its sockets, the command line."""
