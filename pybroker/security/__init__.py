"""Authentication and authorization; nothing here runs while authentication is off."""
