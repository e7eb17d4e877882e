"""The ROS 2 runtime for vision-language-action policies."""


def __getattr__(name: str) -> str:
    """`vla_ros.__version__`, read from package.xml only when somebody asks."""
    if name == "__version__":
        from vla_ros.core.resources import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
