"""The list of topics, and the pages of each topic."""
