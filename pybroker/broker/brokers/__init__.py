"""What a broker knows about the other brokers: who serves which topic, and how a bundle moves."""
