"""The mesh of ranks and the collectives between them."""
