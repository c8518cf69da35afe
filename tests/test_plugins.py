"""Plugins: every file in a plugin folder loads, is called like its file, and its settings survive storage."""

from types import ModuleType

import pytest

from loop import engines, gates, metrics, plugins
from loop.engines import Engine
from loop.errors import InputError
from loop.gates import Gate
from loop.metrics import Metric
from loop.record import Record

KINDS: tuple[tuple[ModuleType, type[Record]], ...] = ((engines, Engine), (gates, Gate), (metrics, Metric))
FOUND = [(package, base, name) for package, base in KINDS for name in plugins.available(package)]
every = pytest.mark.parametrize(
    ("package", "base", "name"), FOUND, ids=[f"{package.__name__}.{name}" for package, _, name in FOUND]
)


def test_what_the_design_names_is_there() -> None:
    """The plugins that the documentation promises."""
    assert {"fake", "sglang"} <= set(plugins.available(engines))
    assert {"config", "prefix_match", "regression", "success", "timed_path"} <= set(plugins.available(gates))
    assert {"e2e", "makespan", "throughput", "tpot", "ttft"} <= set(plugins.available(metrics))


@every
def test_every_plugin_loads_and_its_class_is_called_like_its_file(
    package: ModuleType, base: type[Record], name: str
) -> None:
    """`prefix_match.py` holds `PrefixMatch`, documented."""
    kind = plugins.load(package, name, base)

    assert name.replace("_", "") == kind.__name__.lower()
    assert kind.__doc__


@pytest.mark.parametrize("name", plugins.available(gates))
def test_a_gate_calls_itself_what_its_file_is_called(name: str) -> None:
    """Results carry the name, suites configure it by it."""
    assert name == plugins.load(gates, name, Gate).name


@pytest.mark.parametrize("name", plugins.available(engines))
def test_an_engine_calls_itself_what_its_file_is_called(name: str) -> None:
    """Rounds carry the name and load the engine by it."""
    assert name == plugins.load(engines, name, Engine).name


@every
def test_settings_survive_being_stored(package: ModuleType, base: type[Record], name: str) -> None:
    """Defaults, written as JSON and read back."""
    kind = plugins.load(package, name, base)
    plugin = kind.model_validate({"python": "python3"} if base is Engine else {})

    again = kind.model_validate_json(plugin.model_dump_json())

    assert plugin == again


@pytest.mark.parametrize("name", plugins.available(metrics))
def test_a_metric_says_its_unit_and_its_direction(name: str) -> None:
    """Without either its numbers mean nothing."""
    metric = plugins.load(metrics, name, Metric)

    assert metric.unit in ("ms", "tokens/s", "requests/s")
    assert metric.better == ("lower" if metric.unit == "ms" else "higher")


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    """A typo in `[gates.prefix_mach]` is found before anything starts."""
    with pytest.raises(InputError) as caught:
        plugins.load(gates, "prefix_mach", Gate)

    known = ", ".join(plugins.available(gates))
    assert f"no gate called 'prefix_mach'; known: {known}; did you mean 'prefix_match'?" == str(caught.value)


def test_a_name_like_no_other_gets_no_hint() -> None:
    """A wrong hint is worse than none."""
    assert "" == plugins.closest("zzzzzz", plugins.available(metrics))
