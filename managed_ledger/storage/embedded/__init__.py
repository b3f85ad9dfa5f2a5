"""The engine in one data directory: one fsynced journal for all ledgers, and a file for each."""
