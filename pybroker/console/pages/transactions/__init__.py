"""The page Transactions: live transactions, those that ended within the last hour, and details of
one.
"""
