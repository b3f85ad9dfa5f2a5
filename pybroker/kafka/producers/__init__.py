"""Idempotent producers of one partition: decisions by sequence and epoch; no log, no clock."""
