"""The console's pages: a module and its templates for each. `table.py` lists them."""
