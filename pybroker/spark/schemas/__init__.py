"""Topics' schemas: from values as producers encoded them to typed columns."""
