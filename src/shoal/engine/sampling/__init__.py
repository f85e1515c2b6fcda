"""From logits to a token: parameters, penalties, truncation, guided decoding, log-probabilities."""
