"""`loop`: one command per idea, judged by an A/B/A round, for SGLang deployments."""


def __getattr__(name: str) -> str:
    """`__version__`, read when somebody asks: finding it costs every process start 60 ms otherwise."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang-loop")
    except PackageNotFoundError:  # a copied workspace, not an installed package
        return "0+unknown"
