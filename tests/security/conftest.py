"""A broker that asks who is there, and what they may: `broker` and `world`."""

from permission_world import broker, world

__all__ = ["broker", "world"]
