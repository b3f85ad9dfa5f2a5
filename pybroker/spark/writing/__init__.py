"""The writing side: rows to entries by columns, and making them visible atomically."""
