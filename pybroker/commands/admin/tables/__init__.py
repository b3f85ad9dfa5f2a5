"""The commands, one table per subject."""
