"""Where keys and values live on a rank."""
