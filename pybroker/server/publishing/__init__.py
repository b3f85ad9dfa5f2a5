"""Handlers of producers' commands, and what a message passes before its topic stores it."""
