"""Who decides a setting: flag, then tuned result, then profile. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokencli.core import Profile


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was measured to be fastest, for plans on one device (llama.cpp's name, CPU); `note`: how it is told.

    Without a device there are no values, only a note of why not.
    """

    device: str | None
    values: Mapping[str, Any]
    note: str = ""


@dataclass(slots=True)
class Settings:
    """Takes settings one by one and remembers where each came from."""

    flags: Mapping[str, Any]
    tuned: Mapping[str, Any]
    profile: Profile
    origins: dict[str, str] = field(default_factory=dict)

    def take(self, name: str) -> Any:
        """The value of setting `name`: the flag's, else the tuned result's, else the profile's."""
        value, self.origins[name] = first_given(
            ("flag", self.flags.get(name)), ("tuned", self.tuned.get(name)), ("profile", getattr(self.profile, name, None))
        )
        return value


def first_given(*choices: tuple[str, Any]) -> tuple[Any, str]:
    """The first choice with a value, and its name. The last one's None stands where nobody gives one."""
    return next(((value, origin) for origin, value in choices if value is not None), (None, choices[-1][0]))
