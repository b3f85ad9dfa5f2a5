"""The topics of a namespace: which there are, which a pattern selects, who hears of changes."""
