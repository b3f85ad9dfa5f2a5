"""The topics of a namespace: listing, selection by pattern, and notification of changes."""
