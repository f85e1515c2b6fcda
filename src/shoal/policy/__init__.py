"""The decisions: state and time go in, a decision comes out; no I/O, no clock, no threads, no globals."""
