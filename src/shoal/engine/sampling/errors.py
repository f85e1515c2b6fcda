"""The one error a caller can cause here."""


class InvalidParameter(ValueError):
    """A request parameter out of its range: names the field, the value, and what would be accepted."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"Invalid value for '{field}': {shown}. Expected {accepted}.")
