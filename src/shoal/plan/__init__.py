"""What to buy: memory, step time, search, cost, explanation."""
