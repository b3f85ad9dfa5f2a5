"""Scalable topics: their segments are created, split, merged and pruned; clients of the V5 SDK hear
of the layout, and of who consumes which segment.
"""
