"""Issue 14, faults 1 and 12: whatever a person types for a number is read as meant, or refused by name."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.specs import quantities as q
from shoal.specs.errors import SpecError

wholes = st.integers(min_value=1, max_value=999_999_999)
blanks = st.sampled_from(["", " ", "  "])


def either_case(draw: st.DrawFn, text: str) -> str:
    return draw(st.sampled_from([text, text.lower(), text.upper()]))


@st.composite
def counts(draw: st.DrawFn) -> tuple[str, float]:
    whole = draw(wholes)
    style = draw(st.sampled_from(["plain", "commas", "underscores", "suffix"]))
    if style == "plain":
        return str(whole), float(whole)
    if style == "commas":
        return f"{whole:,}", float(whole)
    if style == "underscores":
        return f"{whole:_}", float(whole)
    suffix, scale = draw(st.sampled_from([("k", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12), (" million", 1e6)]))
    mantissa = draw(st.integers(min_value=1, max_value=99_999)) / 100
    return f"{mantissa:g}{either_case(draw, suffix)}", mantissa * scale


@given(counts())
def test_counts_are_what_was_typed(typed: tuple[str, float]) -> None:
    text, value = typed
    assert q.parse_count(text, "users") == pytest.approx(value, rel=1e-9)


@given(st.integers(min_value=1, max_value=2048), st.sampled_from(["", "k", "K", "m", "M"]), blanks)
def test_tokens_count_in_1024s(number: int, suffix: str, blank: str) -> None:
    scale = {"": 1, "k": 1024, "m": 1024**2}[suffix.lower()]
    assert q.parse_tokens(f" {number}{blank}{suffix} ", "context") == number * scale


@given(st.floats(min_value=0.01, max_value=99.99).map(lambda v: round(v, 2)), blanks)
def test_a_share_in_percent_is_the_share(percent: float, blank: str) -> None:
    expected = pytest.approx(percent / 100)
    assert q.parse_share(f"{percent:g}{blank}%", "prefix_hit") == expected
    assert q.parse_share(f"{percent / 100:.6f}", "prefix_hit") == pytest.approx(percent / 100, abs=1e-6)


@given(st.integers(min_value=2, max_value=99))
def test_a_bare_number_above_one_can_only_be_percent(percent: int) -> None:
    assert q.parse_share(str(percent), "prefix_hit") == pytest.approx(percent / 100)


@given(st.integers(min_value=1, max_value=9999), st.sampled_from(["p{}", "P{}", "{}", "{}%", "{}th"]))
def test_percentiles(hundredths: int, form: str) -> None:
    value = hundredths / 100
    if value < 1 and form == "{}":
        return  # a bare share: 0.95 is the 95th, tested below
    assert q.parse_percentile(form.format(f"{value:g}"), "percentile") == pytest.approx(value)


SECONDS = [("s", 1.0), ("sec", 1.0), ("seconds", 1.0), ("ms", 1e-3), ("milliseconds", 1e-3), ("min", 60.0)]
RATES = ["/s", " rps", " req/s", "/min", "/h", " per day", " qps", ""]
MONEY = ["${}/h", "${}", "{} USD/h", "${} per hour", "{}$/hr", "{} dollars/hour"]


@st.composite
def times(draw: st.DrawFn) -> tuple[str, float]:
    number = draw(st.integers(min_value=1, max_value=99_999)) / 10
    unit, scale = draw(st.sampled_from(SECONDS))
    return f"{number:g}{draw(blanks)}{either_case(draw, unit)}", number * scale


@given(times())
@example(("5S", 5.0))
@example(("500 MS", 0.5))
def test_times_have_a_unit_in_any_case(typed: tuple[str, float]) -> None:
    text, value = typed
    assert q.parse_seconds(text, "ttft") == pytest.approx(value)


@given(st.floats(min_value=1e-3, max_value=1e6))
@example(2.0)
def test_a_time_without_a_unit_is_asked_for_it(number: float) -> None:
    with pytest.raises(SpecError, match=r"is it .*ms or .*s\?") as caught:
        q.parse_seconds(f"{number:.6f}", "ttft")
    assert caught.value.field == "ttft"


@given(st.integers(min_value=1, max_value=10_000), st.sampled_from(RATES))
def test_rates(number: int, unit: str) -> None:
    seconds = {"m": 60, "h": 3600, "d": 86_400}.get(unit.strip().removeprefix("/").removeprefix("per ")[:1], 1)
    assert q.parse_rate(f"{number}{unit}", "rate") == pytest.approx(number / seconds)


@given(st.integers(min_value=1, max_value=100_000), st.sampled_from(MONEY))
def test_money_an_hour(cents: int, form: str) -> None:
    assert q.parse_quantity(form.format(f"{cents / 100:.2f}"), "usd/h", "price") == pytest.approx(cents / 100)


@given(st.integers(min_value=1, max_value=1600), st.sampled_from(["gbps", "Gbps", "Gb/s", " Gbit/s", "gbit/s"]))
def test_bandwidth_in_bits(number: int, unit: str) -> None:
    assert q.parse_quantity(f"{number}{unit}", "bytes/s", "bandwidth") == pytest.approx(number * 1e9 / 8)


@given(st.integers(min_value=1, max_value=4096), st.sampled_from(["GB", "gb", "G", "g", " GB"]))
def test_memory_in_any_case(number: int, unit: str) -> None:
    assert q.parse_quantity(f"{number}{unit}", "bytes", "memory") == number * 1e9


READERS = [
    q.parse_count, q.parse_tokens, q.parse_whole, q.parse_share, q.parse_percentile, q.parse_seconds, q.parse_rate,
    q.parse_ratio, lambda t, f: q.parse_quantity(t, "usd/h", f), lambda t, f: q.parse_quantity(t, "bytes/s", f),
    lambda t, f: q.parse_quantity(t, "bytes", f), lambda t, f: q.parse_quantity(t, "watts", f),
]  # fmt: skip


@pytest.mark.parametrize("read", READERS)
@settings(max_examples=60)
@given(text=st.one_of(st.text(max_size=12), st.from_regex(r"[-+0-9.,_eE]{0,8}[ a-zA-Z%$/]{0,6}", fullmatch=True)))
def test_anything_is_a_finite_number_or_an_error_that_names_the_field(read: object, text: str) -> None:
    assert callable(read)
    value, named = None, ("the_field", text, True)
    try:
        value = read(text, "the_field")
    except SpecError as error:
        named = (error.field, error.value, bool(error.accepted))
    assert named == ("the_field", text, True)
    assert value is None or math.isfinite(value)


@pytest.mark.parametrize(
    ("text", "read", "hint"),
    [
        ("0,5", q.parse_share, "a comma separates thousands"),
        ("1,5s", q.parse_seconds, "a comma separates thousands"),
        ("5m", q.parse_seconds, "ms or min"),
        ("1.5", q.parse_share, "1.5%"),
        ("100%", q.parse_share, "up to, not including"),
        ("mean", q.parse_percentile, "p50"),
        ("100", q.parse_percentile, "between 0 and 100"),
        ("10 parsecs", q.parse_seconds, "parsecs"),
        ("-5", q.parse_count, "greater than zero"),
        ("8.5", q.parse_tokens, "whole number"),
    ],
)
def test_two_readings_are_an_error_that_names_both(text: str, read: object, hint: str) -> None:
    assert callable(read)
    with pytest.raises(SpecError, match="the_field") as caught:
        read(text, "the_field")
    assert hint in caught.value.accepted


def test_bandwidth_in_small_letters_is_asked_about() -> None:
    with pytest.raises(SpecError, match=r"GB/s or Gb/s"):
        q.parse_quantity("400 gb/s", "bytes/s", "bandwidth")
    assert q.parse_percentile("0.95", "percentile") == 95
