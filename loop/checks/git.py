"""The judge is committed: a round measured with changes in it cannot be promoted."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage
from loop.host import read_revision


class Git(Check):
    """`loop/`, `workloads/` and the launcher; candidates may change."""

    stage: ClassVar[Stage] = "workspace"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """The commit, and what is not in it."""
        revision = read_revision(setup.workspace.root)
        if revision.dirty:
            more = f" and {len(revision.dirty) - 1} more" if len(revision.dirty) > 1 else ""
            yield self.warn(
                f"{revision.dirty[0]}{more} not committed: no round measured now can be promoted",
                "`git commit` the changes, or `git stash` them",
            )
        elif revision.commit is None:
            yield self.ok("not a git checkout; promotion compares the hash of loop itself")
        else:
            yield self.ok(f"{revision.commit[:12]}, loop/ and workloads/ are clean")
