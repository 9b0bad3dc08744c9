"""What people see: a run read whole, its timeline from the journal, outcomes, and tables."""
