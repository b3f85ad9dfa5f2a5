"""`pybroker move`: everything a broker stores, from a data directory to BookKeeper or back."""
