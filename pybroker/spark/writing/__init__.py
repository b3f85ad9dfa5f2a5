"""The writing side: rows to entries by columns, and who makes which of them visible, when."""
