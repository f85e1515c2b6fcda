"""Ranks of one replica as processes: how they are launched, linked, watched, and how a step reaches them."""
