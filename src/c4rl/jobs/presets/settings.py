"""Settings of presets: every value with its source."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Setting(NamedTuple):
    value: Any
    source: str


Settings = dict[str, Setting]


def settings_from(stored: Mapping[str, Any]) -> Settings:
    """From JSON, [value, source] each."""
    return {
        name: Setting(tuple(value) if isinstance(value, list) else value, source)
        for name, (value, source) in stored.items()
    }


def values_of(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items()}
