"""Policies: what holds for a topic, by itself, by its namespace or by the broker; and who acts."""
