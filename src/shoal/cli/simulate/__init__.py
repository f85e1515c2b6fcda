"""`shoal simulate`: a load on a fleet, in virtual time."""
