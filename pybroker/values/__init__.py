"""Converts text to bytes according to a schema, and Avro bytes back."""
