"""What every client program asks for: models nested in models, as users write them."""

from typing import Literal

from pydantic import BaseModel, Field


class Address(BaseModel):
    """Where somebody lives."""

    city: str = Field(max_length=20)
    country: Literal["France", "Japan", "Kenya"]


class Person(BaseModel):
    """Somebody, with an address of a type of its own: its JSON schema has `$defs` and `$ref`."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    address: Address


QUESTION = "Jean is 40 years old and lives in Paris, France. Describe Jean."


def check(person: Person) -> None:
    """Raise unless the answer is what the schema says; its content is a small model's guess."""
    assert isinstance(person, Person), type(person)
    assert isinstance(person.address, Address), person
