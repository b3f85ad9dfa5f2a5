"""Logins of Kafka's clients: what each SASL mechanism exchanges, without the requests around it."""
