"""`pybroker move`: copies a broker's whole storage from a data directory to BookKeeper, or back."""
