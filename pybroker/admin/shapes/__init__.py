"""The schemas of bodies and answers, under the names of Apache Pulsar's types and fields."""
