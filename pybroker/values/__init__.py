"""Converts text to bytes of a schema's type, and back."""
