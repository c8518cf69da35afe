"""What a long round tells whoever is watching. The round calls it; how it looks is decided at the command line."""


class Watcher:
    """Hears of every step; the base class says nothing, for scripts and tests."""

    def session(self, label: str, bundle: str) -> None:
        """Session `label` of `bundle` begins."""

    def phase(self, name: str, num_requests: int = 0) -> None:
        """The session goes on to `name`, which sends `num_requests` requests or none."""

    def traffic(self, num_done: int, num_reads: int) -> None:
        """The phase's requests that have ended so far, and the network reads of all: about one a token."""

    def log(self, line: str) -> None:
        """The server's last log line."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
