"""What is asked of a fleet and what came of it: loads, records, statistics, reports; of `bench` and `sim`."""
