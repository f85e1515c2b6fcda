"""Which replica serves a request: filters, scorers in seconds, pickers."""
