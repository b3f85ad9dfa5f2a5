"""What a topic knows about transactions that write to it: which are open, and what is hidden."""
