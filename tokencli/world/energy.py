"""What the kernel tells of energy: the processor's counter (RAPL), a GPU's own sensor, a battery's drain. Knows no answers.

Of these the first that can be read is taken, and named: they overlap, so that no sum of them means anything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_BETWEEN = 0.2  # seconds: sensors of power are no faster
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Sensor:
    """`read`: joules since some time, modulo `wraps_at`; or watts where that is None. None where it cannot be read now."""

    source: str
    read: Callable[[], float | None]
    wraps_at: float | None = None


@dataclass(slots=True)
class Meter:
    """Joules from its first sample to its last, over all sensors; power is linear between two samples."""

    sensors: Sequence[Sensor]
    now: Callable[[], float]
    _seen: list[tuple[float, list[float]]] = field(default_factory=list)  # when, and what each sensor said
    _blind: bool = False

    def sample(self, last: bool = False) -> None:
        """Look, unless it is too soon; the last look is always taken."""
        if not self.sensors:
            return
        now = self.now()
        if self._seen and not last and now - self._seen[-1][0] < _BETWEEN:
            return
        found = [value for each in self.sensors if (value := each.read()) is not None]
        self._blind = self._blind or len(found) < len(self.sensors)
        self._seen.append((now, found))

    def joules(self) -> float | None:
        """None where nothing tells, or what told went silent."""
        if self._blind or len(self._seen) < 2:
            return None
        return sum(self._of(index, sensor) for index, sensor in enumerate(self.sensors))

    def _of(self, index: int, sensor: Sensor) -> float:
        total = 0.0
        for (begun, before), (ended, after) in zip(self._seen, self._seen[1:], strict=False):
            if sensor.wraps_at is None:
                total += (ended - begun) * (before[index] + after[index]) / 2
            else:
                total += (after[index] - before[index]) % sensor.wraps_at
        return total


def sensors(root: Path = Path("/")) -> tuple[Sensor, ...]:
    """Those of the first kind that can be read; none where the kernel tells nothing, or not to this user."""
    for kind in (_processors, _graphics, _batteries):
        found = tuple(each for each in kind(root / "sys/class") if each.read() is not None)
        if found:
            return found
    return ()


def _processors(classes: Path) -> Iterator[Sensor]:
    """Whole packages; the parts of one (intel-rapl:0:0) are counted in it. The name is Intel's, AMD's processors have it too."""
    for folder in sorted(classes.glob("powercap/intel-rapl:*")):
        most = _number(folder / "max_energy_range_uj")
        if folder.name.count(":") == 1 and most:
            yield Sensor("the processor's counter (RAPL)", _scaled(folder / "energy_uj", _MICRO), most * _MICRO)


def _graphics(classes: Path) -> Iterator[Sensor]:
    for file in sorted(classes.glob("drm/card*/device/hwmon/hwmon*/power1_average")):
        yield Sensor("the GPU's sensor", _scaled(file, _MICRO))


def _batteries(classes: Path) -> Iterator[Sensor]:
    """The whole computer, while it runs on it."""
    for folder in sorted(classes.glob("power_supply/BAT*")):
        yield Sensor("the battery's drain", lambda folder=folder: _drain(folder))  # type: ignore[misc]  # a default of a lambda


def _drain(folder: Path) -> float | None:
    try:
        discharging = (folder / "status").read_text().strip() == "Discharging"
    except OSError:
        return None
    power = _number(folder / "power_now")
    if power is None:
        volts, amperes = _number(folder / "voltage_now"), _number(folder / "current_now")
        power = volts * amperes * _MICRO if volts is not None and amperes is not None else None
    return abs(power) * _MICRO if discharging and power else None


def _scaled(file: Path, factor: float) -> Callable[[], float | None]:
    def read() -> float | None:
        found = _number(file)
        return None if found is None else found * factor

    return read


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None
