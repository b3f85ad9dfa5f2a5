"""What makes a process of the packages: the broker put together, its sockets, the command line."""
