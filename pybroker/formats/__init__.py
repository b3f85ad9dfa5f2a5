"""Formats that pybroker's records have elsewhere than in its own storage."""
