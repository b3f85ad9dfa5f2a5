"""The blocking client, a wrapper around the asyncio one."""
