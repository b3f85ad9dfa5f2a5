"""What is answered where: a file for each subject of Apache Pulsar's REST API."""
