"""Models side by side at equal cost: matched runs, one table, one report."""
