"""Which transactions there are, and what was decided of them: one log for each coordinator."""
