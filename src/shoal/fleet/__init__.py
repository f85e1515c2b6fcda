"""What runs many replicas: gateway, registry, leases, health, adapters, launchers."""
