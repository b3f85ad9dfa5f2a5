"""Where ledgers live: the backend seam and its implementations."""
