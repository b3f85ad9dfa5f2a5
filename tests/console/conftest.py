"""The console of a running broker, with and without authentication."""

from permission_world import broker, world

__all__ = ["broker", "world"]
