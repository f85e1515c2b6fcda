"""HTTP/1.1 and server-sent events, both sides: listening, bodies, errors, keys, request ids; a lean client."""
