"""Formats of pybroker's records in storage that it shares with other software."""
