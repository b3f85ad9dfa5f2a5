"""The routes: one file for each subject of Apache Pulsar's REST API."""
