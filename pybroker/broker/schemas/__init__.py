"""Schemas: a topic's versions, and which schemas may follow others."""
