"""The client for threads, around the asyncio one."""
