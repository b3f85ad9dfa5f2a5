"""The binary protocol, sans I/O: bytes to commands and back; no asyncio, no socket, no clock."""
