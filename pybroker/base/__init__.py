"""The basis of all packages: configuration, errors, names, JSON, metrics, time and tasks."""
