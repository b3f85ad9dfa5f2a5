"""Consumers and readers: from a MESSAGE to the application, and its acknowledgement back."""
