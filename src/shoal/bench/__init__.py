"""What did happen: load generation, goodput, reports."""
