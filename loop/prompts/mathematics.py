"""Arithmetic, algebra, sequences, number theory and word problems with drawn numbers."""

from collections.abc import Callable

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar

GRAMMAR = Grammar("lexicon", "math")


def write_arithmetic(dice: Dice) -> str:
    """3 to 6 whole numbers; brackets group from the left, and without them precedence counts."""
    terms = [str(dice.number(2, 999)) for _ in range(dice.number(3, 6))]
    text = terms[0]
    for term in terms[1:]:
        text = f"({text} {dice.pick('+-*')} {term})" if dice.chance(0.4) else f"{text} {dice.pick('+-*')} {term}"
    return f"{dice.pick(('Compute', 'Calculate', 'What is'))} {text}? {GRAMMAR.draw(dice, 'hint')}"


def write_equation(dice: Dice) -> str:
    """Made from a whole solution; where both factors are equal, every number is one."""
    solution, factor, other = dice.number(-20, 40), dice.number(2, 19), dice.number(2, 19)
    offset = dice.number(-99, 99)
    right = (factor - other) * solution + offset
    name = dice.pick("xyzabkmnt")
    return f"Solve for {name}: {factor}{name} {offset:+d} = {other}{name} {right:+d}. {GRAMMAR.draw(dice, 'hint')}"


def write_quadratic(dice: Dice) -> str:
    """Made from whole roots between -12 and 12."""
    first, second, scale = dice.number(-12, 12), dice.number(-12, 12), dice.number(1, 5)
    b, c = -scale * (first + second), scale * first * second
    task = dice.pick(("Find all real roots of", "Factor", "Where is the vertex of", "Sketch in words the graph of"))
    return f"{task} {scale}x^2 {b:+d}x {c:+d}. {GRAMMAR.draw(dice, 'hint')}"


def write_system(dice: Dice) -> str:
    """Made from a whole solution; where the rows are multiples of each other, it is one of many."""
    x, y = dice.number(-9, 15), dice.number(-9, 15)
    rows = []
    for _ in range(2):
        a, b = dice.number(1, 12), dice.number(-9, 9) or 1
        rows.append(f"{a}x {b:+d}y = {a * x + b * y}")
    return f"Solve the system of equations:\n{rows[0]}\n{rows[1]}\n{GRAMMAR.draw(dice, 'hint')}"


def write_sequence(dice: Dice) -> str:
    """Six terms by one of four rules: equal steps, factor and offset, growing steps, sum of the last two."""
    start, step, ratio = dice.number(-20, 40), dice.number(2, 17), dice.number(2, 4)
    kind = dice.number(0, 3)
    terms = [start, start + step]
    while len(terms) < 6:
        n = len(terms)
        if kind == 0:
            terms.append(terms[-1] + step)
        elif kind == 1:
            terms.append(terms[-1] * ratio - step)
        elif kind == 2:
            terms.append(terms[-1] + step * n)
        else:
            terms.append(terms[-1] + terms[-2])
    shown = ", ".join(map(str, terms))
    nth = dice.number(9, 40)
    ending = f"What comes next, and what is term number {nth}" if kind != 1 else "What are the next three terms"
    return f"{shown}, ... {ending}? Name the rule. {GRAMMAR.draw(dice, 'hint')}"


def write_number_theory(dice: Dice) -> str:
    """Divisors, primes, remainders, bases, powers; some tasks need integers of a hundred bits and more."""
    a, b = dice.number(120, 9999), dice.number(120, 9999)
    base, power, modulus = dice.number(2, 29), dice.number(11, 400), dice.number(5, 97)
    task = dice.pick(
        (
            f"Find the greatest common divisor and the least common multiple of {a} and {b}.",
            f"Write {a} as a product of primes.",
            f"What is the remainder of {base}^{power} divided by {modulus}?",
            f"Convert {a} to base {dice.number(2, 9)} and to base 16.",
            f"How many divisors does {a} have, and what is their sum?",
            f"Which is larger: {base}^{dice.number(30, 60)} or {base + 9}^{dice.number(15, 50)}?",
        )
    )
    return f"{task} {GRAMMAR.draw(dice, 'hint')}"


def write_geometry(dice: Dice) -> str:
    """Lengths in cm; no chord is longer than the diameter."""
    a, b, height = dice.number(3, 60), dice.number(3, 60), dice.number(2, 40)
    task = dice.pick(
        (
            f"A right triangle has legs of {a} cm and {b} cm. Find the hypotenuse, the area and both angles.",
            f"A cylinder has radius {a} cm and height {height} cm. Find its volume and its surface.",
            f"Find the distance and the midpoint of ({-a}, {b}) and ({height}, {-b}).",
            f"A circle of radius {a} cm has a chord of length {min(b, 2 * a - 1)} cm. How far is it to the centre?",
            f"A pyramid has a square base of {a} cm and a height of {height} cm. Find its volume and slant height.",
        )
    )
    return f"{task} {GRAMMAR.draw(dice, 'hint')}"


def write_statistics(dice: Dice) -> str:
    """6 to 14 whole numbers, not sorted; sample or population is left open."""
    values = [dice.number(1, 200) for _ in range(dice.number(6, 14))]
    return (
        f"Data: {', '.join(map(str, values))}. Find the mean, the median, the range and the standard deviation. "
        f"{GRAMMAR.draw(dice, 'hint')}"
    )


def write_calculus(dice: Dice) -> str:
    """Coefficients and powers from 2 to 12; every function is smooth where its task looks."""
    a, b, c, n = (dice.number(2, 12) for _ in range(4))
    function = dice.pick(
        (
            f"{a}x^{n} - {b}x^2 + {c}",
            f"{a}x * e^({b}x)",
            f"sin({a}x) / (x^2 + {b})",
            f"ln({a}x^2 + {c})",
            f"({a}x + {b})^{n}",
        )
    )
    task = dice.pick(
        ("Differentiate", "Find the second derivative of", "Find the tangent at x = 1 of", "Expand around 0:")
    )
    return f"{task} f(x) = {function}. {GRAMMAR.draw(dice, 'hint')}"


def write_word_problem(dice: Dice) -> str:
    """Everyday units; the ranges of the numbers are such that each problem can be solved."""
    return f"{GRAMMAR.draw(dice, 'word_problem')} {GRAMMAR.draw(dice, 'hint')}"


def write_proof(dice: Dice) -> str:
    """Some of the claims are false, and a counterexample is the answer."""
    return GRAMMAR.draw(dice, "proof")


KINDS: tuple[Callable[[Dice], str], ...] = (
    write_word_problem,
    write_arithmetic,
    write_equation,
    write_sequence,
    write_word_problem,
    write_number_theory,
    write_system,
    write_geometry,
    write_word_problem,
    write_quadratic,
    write_statistics,
    write_calculus,
    write_proof,
)
