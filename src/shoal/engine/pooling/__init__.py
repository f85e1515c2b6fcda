"""Models that give vectors or scores instead of text: encoders, and decoders whose states are pooled.

    texts ──► TextEncoder ──► token ids ──► PoolingEngine (batches of whole sequences) ──► PoolingModel ──► rows

Nothing is kept between requests: no KV memory is shared, and a sequence is computed in one step.
"""
