"""Plain writing of quantities, in both conventions where they can be confused. `quantities` reads them."""


def gigabytes(value: float) -> str:
    """Bytes in both conventions, e.g. "80.0 GB (74.5 GiB)", so that neither can be taken for the other."""
    return f"{value / 1e9:,.1f} GB ({value / 2**30:,.1f} GiB)"


def decimal_bytes(value: float) -> str:
    """Bytes with a decimal prefix and three significant digits or more: "328 KB", "2.68 GB", "1.03 TB"."""
    magnitude = abs(value)
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if magnitude >= scale:
            scaled = value / scale
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 100 else f"{scaled:.3g} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as people say them: "1.4 s", "76 ms", "35 µs"."""
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
