"""Reading: what a query reads is planned in one place, and read by tasks, column by column."""
