"""The terms of a comparison: what must be equal for two rounds to be held against each other."""

from loop.environment import Environment, differences
from loop.host import VOLATILE
from loop.record import Record, sha256_of

CLIENT = "loop.client/2"
"""Rounds measured by different clients are not comparable: raise it when what the client measures changes.

1  first
2  canaries among the requests of every pass
"""


class Terms(Record):
    """Machine, driver, model, suite, engine and client of a round."""

    environment: Environment
    suite_sha256: str
    engine: str
    client: str = CLIENT

    @property
    def fingerprint(self) -> str:
        """sha256 over all of it but what one machine may change by itself."""
        document = self.document()
        host = document["environment"]["host"]
        document["environment"]["host"] = {name: value for name, value in host.items() if name not in VOLATILE}
        return sha256_of(document)

    def differing(self, other: "Terms") -> list[str]:
        """`driver: 570.1 there, 580.2 here`, for every field that makes `other` (there) incomparable with this."""
        found = {n: p for n, p in differences(other.environment, self.environment).items() if n not in VOLATILE}
        for name in ("suite_sha256", "engine", "client"):
            if getattr(other, name) != getattr(self, name):
                found[name] = (getattr(other, name), getattr(self, name))
        return [f"{name}: {there} there, {here} here" for name, (there, here) in found.items()]
