"""A serving system with known delays, known answers and injectable faults: `python -m loop.fake_server`.

It speaks SGLang's HTTP surface and prints SGLang's log lines, so the orchestrator drives it exactly as it drives
SGLang. Tests, docs and `--dry-run` use it; nothing it measures says anything about a real model.

Reading order: `flags` (what can be asked), `orders` (what a client asked for), `plans` (what will be answered),
`faults` (what goes wrong), `streams` (when each token leaves), `wire` (which bytes leave).
"""
