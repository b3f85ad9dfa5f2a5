"""The broker process: composition of its parts, sockets, the command line."""
