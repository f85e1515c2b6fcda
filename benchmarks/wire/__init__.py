"""Two hosts on one machine: network namespaces, the link between them, and what is measured over it."""
