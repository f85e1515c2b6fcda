"""Where models come from: catalog, directory, GGUF, hub, object store; checksummed and atomic."""
