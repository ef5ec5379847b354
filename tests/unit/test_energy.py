"""Joules from the kernel's files and a clock that is handed in. The files have the form of the kernel's documentation (powercap,
hwmon, sysfs-class-power); none was captured: the machines of this project have no such sensor.
"""

from pathlib import Path

import pytest

from tokencli.world.energy import Meter, Sensor, sensors

RAPL = {
    "powercap/intel-rapl/enabled": "1\n",
    "powercap/intel-rapl:0/name": "package-0\n",
    "powercap/intel-rapl:0/energy_uj": "65532000000\n",
    "powercap/intel-rapl:0/max_energy_range_uj": "65532610987\n",
    "powercap/intel-rapl:0:0/name": "core\n",
    "powercap/intel-rapl:0:0/energy_uj": "1200\n",
    "powercap/intel-rapl:0:0/max_energy_range_uj": "65532610987\n",
}
GPU = {"drm/card1/device/hwmon/hwmon5/power1_average": "28125000\n"}
BATTERY = {
    "power_supply/AC/online": "0\n",
    "power_supply/BAT0/status": "Discharging\n",
    "power_supply/BAT0/power_now": "12500000\n",
}
AMPERES = {
    "power_supply/BAT1/status": "Discharging\n",
    "power_supply/BAT1/voltage_now": "15400000\n",
    "power_supply/BAT1/current_now": "1000000\n",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / "sys/class" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "source", "value"),
    [
        (RAPL | GPU | BATTERY, "the processor's counter (RAPL)", 65532.0),
        (GPU | BATTERY, "the GPU's sensor", 28.125),
        (BATTERY, "the battery's drain", 12.5),
        (AMPERES, "the battery's drain", 15.4),
    ],
)
def test_the_first_kind_that_can_be_read_is_taken(tmp_path: Path, files: dict[str, str], source: str, value: float) -> None:
    (found,) = sensors(tree(tmp_path, files))
    assert (found.source, found.read()) == (source, pytest.approx(value))


def test_what_cannot_be_read_or_says_nothing_is_none(tmp_path: Path) -> None:
    assert sensors(tmp_path) == ()
    charging = {**BATTERY, "power_supply/BAT0/status": "Charging\n"}
    broken = {"powercap/intel-rapl:0/energy_uj": "\n", "powercap/intel-rapl:0/max_energy_range_uj": "1\n"}
    assert sensors(tree(tmp_path, charging | broken)) == ()


def metered(sensors: tuple[Sensor, ...], times: list[float]) -> Meter:
    clock = iter(times)
    meter = Meter(sensors, lambda: next(clock))
    for index in range(len(times)):
        meter.sample(last=index == len(times) - 1)
    return meter


def reading(*values: float | None, wraps_at: float | None = None) -> Sensor:
    told = iter(values)
    return Sensor("a test", lambda: next(told), wraps_at)


def test_a_counter_is_a_difference_also_where_it_wraps() -> None:
    assert metered((reading(90.0, 5.0, 25.0, wraps_at=100.0),), [0.0, 1.0, 2.0]).joules() == 35.0


def test_power_is_added_up_over_time() -> None:
    assert metered((reading(10.0, 20.0, 20.0),), [0.0, 1.0, 3.0]).joules() == 15.0 + 40.0


def test_looks_that_come_too_soon_are_left_out_but_for_the_last() -> None:
    assert metered((reading(10.0, 10.0),), [0.0, 0.05, 0.1]).joules() == pytest.approx(1.0)


def test_several_processors_are_added() -> None:
    both = (reading(0.0, 3.0, wraps_at=100.0), reading(50.0, 54.0, wraps_at=100.0))
    assert metered(both, [0.0, 1.0]).joules() == 7.0


def test_without_a_sensor_or_when_one_falls_silent_nothing_is_known() -> None:
    assert metered((), [0.0, 1.0]).joules() is None
    assert metered((reading(1.0),), [0.0]).joules() is None
    assert metered((reading(1.0, None),), [0.0, 1.0]).joules() is None
