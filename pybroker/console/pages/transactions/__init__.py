"""The page Transactions: all that are live, those that ended lately, and each by itself."""
