"""A file for each request, or for a few that belong together; table.py names them all."""
