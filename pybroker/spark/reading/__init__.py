"""Reading: the planner decides what a query reads; tasks read it, column by column."""
