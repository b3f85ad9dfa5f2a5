"""A broker, its clients, network, disks and clocks in one process, from a seed."""
