"""What one replica computes next: block pool, prefix hashing, scheduler, step plans."""
