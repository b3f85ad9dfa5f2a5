"""A broker with authentication and authorization: `broker` and `world`."""

from permission_world import broker, world

__all__ = ["broker", "world"]
