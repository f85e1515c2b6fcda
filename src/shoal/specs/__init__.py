"""The nouns: models, accelerators, clusters, layouts, workloads, targets; exact arithmetic, no torch, no HTTP."""
