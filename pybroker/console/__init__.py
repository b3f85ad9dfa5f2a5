"""The web console: pages over the admin API, served at /console of the HTTP port."""
