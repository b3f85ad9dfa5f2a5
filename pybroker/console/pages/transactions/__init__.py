"""The page Transactions: live ones, those that ended within the last hour, and one in detail."""
