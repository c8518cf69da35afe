"""How a count is said."""


def count(number: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
