"""Columns, not messages: stored entries become Arrow arrays without an object for each row."""
