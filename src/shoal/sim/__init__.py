"""What would happen: a discrete-event world that drives the policies with the planner's step time."""
