"""The commands: plan, serve, bench, simulate, calc, doctor, pull."""
