"""Building blocks of a transformer layer, written once for every architecture."""
