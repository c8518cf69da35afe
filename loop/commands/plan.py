"""`loop plan`: what a round would do."""

from typing import TYPE_CHECKING, Any

from loop.commands import AsJson, Baseline, BundleId, EngineName, Model, Protocol, Suite, make_plan, print_json

if TYPE_CHECKING:
    from loop.plan import Plan


def main(
    bundle: BundleId,
    suite: Suite = None,
    model: Model = None,
    baseline: Baseline = "shipped",
    engine: EngineName = None,
    protocol: Protocol = "aba",
    as_json: AsJson = False,
) -> None:
    """Show what a round would do: sessions, requests, predicted minutes."""
    planned = make_plan(bundle, suite=suite, model=model, baseline=baseline, engine=engine, protocol=protocol)
    if as_json:
        print_json(describe(planned))
        return
    from loop import display

    display.show_plan(planned)


def describe(planned: "Plan") -> dict[str, Any]:
    """A plan as one JSON document."""
    from loop.prediction import predict

    prediction = predict(planned)
    return {
        "candidate": planned.candidate.document(),
        "baseline": planned.baseline.document(),
        "suite": {"id": planned.suite.id, "sha256": planned.suite.sha256},
        "model": {"path": str(planned.model), "sha256": planned.model_sha256},
        "engine": {"name": planned.engine.name, "version": planned.engine_version},
        "fingerprint": planned.fingerprint,
        "sessions": [session.document() for session in planned.sessions],
        "num_requests": planned.num_requests,
        "predicted_s": round(prediction.total_s, 1),
        "predicted_from_rounds": prediction.num_rounds,
    }
