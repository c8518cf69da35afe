"""`loop validate`: whether a bundle would start."""

from loop.commands import AsJson, BundleId, EngineName, Model, Suite, make_plan, print_json


def main(
    bundle: BundleId, suite: Suite = None, model: Model = None, engine: EngineName = None, as_json: AsJson = False
) -> None:
    """Check a bundle against the installed engine, the suite and the model, without starting anything."""
    plan = make_plan(bundle, suite=suite, model=model, baseline="shipped", engine=engine, protocol="aba")
    if as_json:
        print_json(plan.candidate.document())
        return
    print(f"{bundle} is valid for {plan.engine.name} {plan.engine_version} on {plan.host.device}")
    print(f"sha256 {plan.candidate.sha256}")
    print(f"argv   {' '.join(plan.candidate.argv) or '(the engine alone)'}")
    for name, value in plan.candidate.content.env.items():
        print(f"env    {name}={value}")
    for line in plan.candidate.content.code_lines():
        print(f"code   {line}")
