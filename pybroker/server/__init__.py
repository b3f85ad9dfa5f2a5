"""The broker on the wire: an asyncio server, one session a connection, handlers by area."""
