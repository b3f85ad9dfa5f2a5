"""Scalable topics (topic://): what only their producers and consumers need. Loaded on first use."""

from pybroker.client.scalable.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
