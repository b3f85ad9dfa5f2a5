"""Prints the rows of the three programs with a database, for `pybroker eos-check --rows`.

python examples/rows.py DATABASE
"""

import sqlite3
import sys

with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30) as connection:
    for (number,) in connection.execute("SELECT number FROM invoices"):
        print(number)
