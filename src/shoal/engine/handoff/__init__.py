"""KV of a prompt, computed on one replica and taken over by another."""
