"""The machine that never was: loop, processes, network, disk and clock of one seed."""
