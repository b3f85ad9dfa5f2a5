"""One connection: its bytes in and out, the order of its commands, its limits, its login.

Nothing here knows what a command does: handlers are in the other packages.
"""
