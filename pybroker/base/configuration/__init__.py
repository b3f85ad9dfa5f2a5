"""The configuration under broker.conf's names: its keys, and reading it from files."""
