"""Connections from within this process: sessions like any other, over a transport in memory."""
