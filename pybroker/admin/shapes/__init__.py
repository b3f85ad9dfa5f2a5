"""What bodies and answers look like, under the names of Apache Pulsar's types and their fields."""
