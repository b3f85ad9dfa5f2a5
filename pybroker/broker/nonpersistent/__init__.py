"""Topics that keep nothing: what nobody takes at once is dropped."""
