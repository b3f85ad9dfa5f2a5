"""`pybroker check`: is a data directory whole, and what is lost if it is not?"""
