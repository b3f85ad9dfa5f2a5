"""Transaction coordinators: the transactions of each and their outcomes, in one log per
coordinator.
"""
