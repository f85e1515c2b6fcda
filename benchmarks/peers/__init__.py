"""Engines that Shoal is measured against: each in its own interpreter, asked over a pipe or over HTTP."""
