"""The environment of a session: the machine, the model and the engine, read again before each one of a round."""

from pathlib import Path

from loop.engines import Engine
from loop.errors import UnfitError
from loop.host import Host, hash_model, read_host
from loop.record import Record


class Environment(Record):
    """What must stay as it is from the first session of a round to the last. Also the boot: a reboot is a change."""

    host: Host
    model_sha256: str
    engine_version: str


def read_environment(engine: Engine, model: Path) -> Environment:
    """What is here now, whatever was read before. Raises UnfitError if the engine or the model is gone."""
    try:
        model_sha256 = hash_model(model)
    except OSError as problem:
        raise UnfitError(f"the model {model} cannot be read any more: {problem}", next="restore it") from None
    fresh = type(engine)(python=engine.python)  # an engine remembers its version
    return Environment(host=read_host(), model_sha256=model_sha256, engine_version=fresh.version)


def differences(before: Environment | None, after: Environment | None) -> dict[str, tuple[str, str]]:
    """Field → (what it was, what it is) for every field that changed: `driver`, `gpu 0.power_limit_w`.

    None where one of them is unknown: rounds of older releases have none.
    """
    if before is None or after is None:
        return {}
    old, new = _flat(before), _flat(after)
    return {
        name: (old.get(name, "nothing"), new.get(name, "nothing"))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }


def changes(before: Environment | None, after: Environment | None) -> dict[str, tuple[str, str]]:
    """The differences that spoil a round. Some virtual machines are given memory as they use it: that is none."""
    return {name: pair for name, pair in differences(before, after).items() if name != "memory_bytes"}


def _flat(environment: Environment) -> dict[str, str]:
    document = environment.document()
    host = document.pop("host")
    gpus = {f"gpu {index}.{name}": value for index, gpu in enumerate(host.pop("gpus")) for name, value in gpu.items()}
    return {name: str(value) for name, value in {**host, **gpus, **document}.items()}
