"""Compaction: of each key the last message, kept in a log of its own for who reads compacted."""
