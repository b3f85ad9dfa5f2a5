"""Which transactions exist, and what was decided about them: one log per coordinator."""
