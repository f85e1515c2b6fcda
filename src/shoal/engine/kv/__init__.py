"""Where keys and values live on a rank."""

from shoal.engine.kv.cache import KvCache, LayerKv, kv_block_bytes

__all__ = ["KvCache", "LayerKv", "kv_block_bytes"]
