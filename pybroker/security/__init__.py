"""Who is there, and what they may: nothing here runs while authentication is off."""
