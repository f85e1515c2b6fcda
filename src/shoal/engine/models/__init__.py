"""Models assembled from a `ModelSpec`."""
