"""Logging: levels by area, lines as text or JSON, and the audit log."""
