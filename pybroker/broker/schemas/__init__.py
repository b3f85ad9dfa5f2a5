"""Schemas: a topic's versions, and which schema may follow another."""
