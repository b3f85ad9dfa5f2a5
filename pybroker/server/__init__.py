"""The broker on the wire: an asyncio server, one session per connection, handlers by area."""
