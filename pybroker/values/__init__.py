"""Converts text to bytes according to a schema, and bytes of Avro and Protobuf back."""
