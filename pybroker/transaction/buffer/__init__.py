"""What a topic knows of the transactions that write to it: which are open, and what is hidden."""
