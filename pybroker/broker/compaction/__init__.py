"""Compaction: keeps the last message of each key in a separate log, for compacted readers."""
