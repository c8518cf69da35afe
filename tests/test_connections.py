"""Five thousand connections between one client process and one server process."""

import resource
from pathlib import Path

import pytest

from loop.measure import ClientProcess
from tests.wire import Fakes, request, send_job

pytest_plugins = ["tests.wire_fixtures"]

NUM_STREAMS = 5000
PATIENT = ("--ttft-ms", "4000", "--tpot-ms", "1", "--max-running-requests", str(NUM_STREAMS))


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NUM_STREAMS + 100, reason="too few descriptors")
def test_five_thousand_streams_are_served_at_once(fakes: Fakes, tmp_path: Path) -> None:
    """All in flight before the first is answered, whatever a shell allows; no connection is lost or opened late."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        port = fakes.port(*PATIENT)
        with ClientProcess(tmp_path / "client.log") as client:
            asked = [request(f"r{number}", (300, 301, number), 2) for number in range(NUM_STREAMS)]
            replies, report = send_job(
                client, tmp_path, port, asked, concurrency=NUM_STREAMS, idle_timeout_s=60.0, deadline_s=60.0
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert {None} == {reply.failure for reply in replies}
    assert (NUM_STREAMS, 0) == (report.num_connections, report.num_late_connections)
    assert max(reply.sent_ns or 0 for reply in replies) < min(reply.first_ns or 0 for reply in replies)
