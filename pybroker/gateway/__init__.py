"""Clients within the broker's process, for peers that speak HTTP or WebSocket; imported at the
first of their requests.
"""
