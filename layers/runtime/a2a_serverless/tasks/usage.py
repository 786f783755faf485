"""What a task's models have used: tokens, and money at the owner's prices.

Pure. Money is in millionths of the currency of the price list, so that sums are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from fnmatch import fnmatchcase
from typing import Final, Self, TypeAlias

from a2a_serverless.values import dataclass

MODELS: Final = 16
"""The models of a task that are counted by name; all others are counted as `OTHER`."""
OTHER: Final = "other"
MODEL_LENGTH: Final = 100
"""Characters of a model's name that are kept."""
MOST_TOKENS: Final = 1_000_000_000
"""The most tokens that one report may have: more are a mistake."""
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of one model, and what they have used."""

    model: str
    calls: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that the provider has read from its cache."""
    cost: int = 0
    """In millionths."""
    unpriced: int = 0
    """Calls for which the price list has no price."""

    @property
    def tokens(self) -> int:
        """Return the tokens of input and output together."""
        return self.input_tokens + self.output_tokens


Used: TypeAlias = tuple[Usage, ...]
"""Usage by model: one of each."""


def summed(usage: Iterable[Usage]) -> Used:
    """Return the sum for each model, in the order in which they came first."""
    sums: dict[str, Usage] = {}
    for one in usage:
        known = one.model in sums or len(sums) < MODELS or one.model == OTHER
        name = one.model if known else OTHER
        before = sums.get(name, Usage(name, calls=0))
        numbers = {n: getattr(before, n) + getattr(one, n) for n in _NUMBERS}
        sums[name] = replace(before, **numbers)
    return tuple(sums.values())


def total(used: Used) -> Usage:
    """Return the sum over all models; its model has no name."""
    return Usage("", *(sum(getattr(one, name) for one in used) for name in _NUMBERS))


def encoded(used: Used) -> str:
    """Return usage as JSON: a list for each model, as short as HEAD needs it."""
    rows = ([one.model, *(getattr(one, name) for name in _NUMBERS)] for one in used)
    return json.dumps([*rows], separators=(",", ":"))


def decoded(text: str | bytes) -> Used:
    """Return the usage that `encoded` has written; numbers that a newer release adds are ignored.

    Raises:
        ValueError, TypeError, RecursionError: it is not that.
    """
    rows = json.loads(text)
    if not (isinstance(rows, list) and all(isinstance(row, list) for row in rows)):
        raise TypeError("it is no list of lists")
    return tuple(_usage(*row[: len(_NUMBERS) + 1]) for row in rows)


def _usage(model: object, *numbers: object) -> Usage:
    if not (isinstance(model, str) and all(type(number) is int for number in numbers)):
        raise TypeError("a model's name is no text, or a count no number")
    return Usage(model, *numbers)  # type: ignore[arg-type] # checked above


_NUMBERS: Final = tuple(each.name for each in fields(Usage))[1:]


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of a million tokens of a model, in the list's currency."""

    input: float
    output: float
    cached: float | None = None
    """Of input that is read from the cache; None: as other input."""

    def of(self, usage: Usage) -> int:
        """Return what usage costs, in millionths."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, usage.input_tokens - usage.cached_tokens)
        return round(
            fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """The owner's price list."""

    currency: str = ""
    models: Mapping[str, Price] = field(default_factory=dict)
    """By a model's name, or a pattern such as `gpt-5*`."""

    @classmethod
    def of(cls, listed: object) -> Self:
        """Return the list of a JSON value.

        `{"currency": "USD", "models": {"gpt-5*": {"input": 1.25, "output": 10, "cached": 0.125}}}`

        Raises:
            ValueError: it is none; the message says what is wrong.
        """
        match listed:
            case {"currency": str(currency), "models": dict(models), **other} if not other:
                return cls(currency, {name: _price(name, one) for name, one in models.items()})
            case _:
                raise ValueError('it needs "currency", a text, and "models", and nothing else')

    def priced(self, usage: Usage) -> Usage:
        """Return usage with its cost, or counted as unpriced; as it is if there is no list."""
        if not self.models:
            return usage
        price = self.models.get(usage.model)  # a name such as `m[1]` is no pattern of itself
        if price is None:
            patterns = [name for name in self.models if fnmatchcase(usage.model, name)]
            if not patterns:
                return replace(usage, unpriced=usage.calls)
            price = self.models[max(patterns, key=len)]
        return replace(usage, cost=price.of(usage))


def _price(model: str, listed: object) -> Price:
    wanted = {"input", "output"}
    if not isinstance(listed, dict) or not wanted <= listed.keys() <= {*wanted, "cached"}:
        raise ValueError(f'the model {model} needs "input" and "output", and may have "cached"')
    for name, price in listed.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 <= price < MILLION:
            raise ValueError(f"the price {name} of {model} is no number from 0 to a million")
    return Price(**listed)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used; 0: any number."""

    tokens: int = 0
    cost: int = 0
    """In millionths."""

    def exceeded(self, used: Usage, currency: str) -> str:
        """Return what of a budget is used up, as a sentence says it; empty: nothing is."""
        if 0 < self.tokens <= used.tokens:
            return f"{used.tokens:,} of {self.tokens:,} tokens"
        if 0 < self.cost <= used.cost:
            return f"{_money(used.cost)} of {_money(self.cost)} {currency}".rstrip()
        return ""

    @property
    def is_set(self) -> bool:
        """Return True if anything is bounded."""
        return bool(self.tokens or self.cost)


def _money(millionths: int) -> str:
    """Return an amount with two decimals, or with more where it has them."""
    whole, _, part = f"{millionths / MILLION:.6f}".partition(".")
    return f"{whole}.{part.rstrip('0'):0<2}"
