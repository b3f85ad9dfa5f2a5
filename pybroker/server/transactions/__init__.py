"""Handlers of the transaction commands (PIP-31), sessions of transactional ids, and the limits of
open transactions.
"""
