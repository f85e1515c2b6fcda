"""The fleet in virtual time: its own code before simulated replicas, network and processes."""
