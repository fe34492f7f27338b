"""Devices and host: readers behind one protocol, on fakes and recorded samples."""

import time
from pathlib import Path

import pytest

from agent.hardware import Devices, choose_readers, host
from agent.hardware.base import MIB, DeviceProcess, HardwareError, device_class, mig_profile
from agent.hardware.nvidia_smi import SmiReader, parse
from agent.hardware.nvml import NvmlReader
from llmgw.wire.messages import Cpu, PortRange
from tests.fakes import nvidia_smi
from tests.fakes.nvml import Card, FakeNvml, Instance, Memory, RunningProcess

DATA = Path(__file__).parent / "data"
FIRST = "GPU-6513270e-269e-4d37-b2a7-4de452e6b438"
SECOND = "GPU-d23f0824-128b-4f33-8c5c-7fd0a6a3a450"
MIGS = {
    0: ("MIG-9531985d-5d9d-49f8-9818-e811892f902b", "3g.40gb", 40448),
    1: ("MIG-36f675cc-81e7-4ef5-a8e2-5d940ed90475", "2g.20gb", 20096),
    2: ("MIG-6b0d549b-6f03-475a-9600-a35a099950d8", "1g.10gb", 9984),
}
NAME = "NVIDIA H100 80GB HBM3"


def fake_nvml(mig):
    first = Card(FIRST, mig=mig, utilization=None if mig else 0, memory=Memory(81559 * MIB, (36 if mig else 0) * MIB))
    if mig:
        first.instances = {
            index: Instance(uuid, f"{NAME} MIG {profile}", Memory(size * MIB, 12 * MIB))
            for index, (uuid, profile, size) in MIGS.items()
        }
    return FakeNvml([first, Card(SECOND)])


@pytest.fixture(params=["nvml", "nvidia-smi"])
def reader(request, tmp_path):
    """A function that gives a reader of the two-card node of the samples."""

    def make(mig):
        if request.param == "nvml":
            return NvmlReader(fake_nvml(mig))
        kind = "mig" if mig else "nomig"
        listing, details = (DATA / f"L-{kind}.txt").read_text(), (DATA / f"q-x-{kind}.xml").read_text()
        return SmiReader(str(nvidia_smi.install(tmp_path, listing, details)))

    return make


class TestConformance:
    """What every reader tells of the same node."""

    def test_whole_cards(self, reader):
        """AGT-01, PLC-01: keyed by UUID, with class, memory and driver."""
        reading = reader(mig=False).read()
        assert reading.driver == "575.57.08"
        first, second = reading.devices
        assert [each.device.uuid for each in (first, second)] == [FIRST, SECOND]
        assert (first.device.kind, first.device.index, first.device.device_class) == ("gpu", 0, "h100-80g")
        assert first.device.memory_bytes == 81559 * MIB
        assert first.device.excluded is None
        assert (first.memory_used_bytes, first.utilization_percent, first.temperature_celsius) == (0, 0.0, 29.0)
        assert first.power_watts == pytest.approx(68, abs=1)
        assert first.processes == ()

    def test_mig_instances_replace_the_card(self, reader):
        """PLC-08: own UUID, memory and class, numbered by card and instance; utilisation is left out."""
        reading = reader(mig=True).read()
        *instances, whole = reading.devices
        assert [each.device.uuid for each in instances] == [uuid for uuid, _, _ in MIGS.values()]
        assert [each.device.index for each in instances] == [1000, 1001, 1002]
        assert [each.device.device_class for each in instances] == [
            "h100-80g-mig-3g.40gb",
            "h100-80g-mig-2g.20gb",
            "h100-80g-mig-1g.10gb",
        ]
        for each, (_, _, size) in zip(instances, MIGS.values(), strict=True):
            assert (each.device.kind, each.device.parent) == ("mig", FIRST)
            assert each.device.memory_bytes == size * MIB
            assert each.memory_used_bytes == 12 * MIB
            assert each.utilization_percent is None
            assert each.temperature_celsius == 29.0
        assert (whole.device.uuid, whole.device.index) == (SECOND, 1)


def test_nvml_faults_are_told_and_unknown_stays_unknown():
    """PLC-02: a faulty card is not free; a figure the driver does not give is not zero."""
    cards = [
        Card("GPU-a", uncorrected=3),
        Card("GPU-b", remap_failed=True),
        Card("GPU-c", mig=True),
        Card("GPU-d", temperature=None, power_milliwatts=None, utilization=None, uncorrected=None),
        Card("GPU-e", lost=True),
        Card("GPU-f", processes=[RunningProcess(2**22 + 1, 2 * 1024 * MIB)]),
    ]
    a, b, c, d, e, f = NvmlReader(FakeNvml(cards)).read().devices
    assert "3 uncorrected" in a.device.excluded
    assert "remapping" in b.device.excluded
    assert "no instance" in c.device.excluded
    assert d.device.excluded is None
    assert (d.temperature_celsius, d.power_watts, d.utilization_percent) == (None, None, None)
    assert "lost" in e.device.excluded
    assert f.processes == (DeviceProcess(2**22 + 1, "", 2 * 1024 * MIB),)
    assert str(f.processes[0]) == f"pid {2**22 + 1} (2.0 GiB)"


def test_nvidia_smi_faults_and_processes():
    """PLC-02: the same facts from XML."""
    details = (DATA / "q-x-nomig.xml").read_text()
    details = details.replace(
        "<dram_uncorrectable>0</dram_uncorrectable>", "<dram_uncorrectable>2</dram_uncorrectable>", 1
    ).replace(
        "<processes>",
        "<processes><process_info><gpu_instance_id>N/A</gpu_instance_id><pid>4711</pid><type>C</type>"
        "<process_name>/usr/bin/python3</process_name><used_memory>1024 MiB</used_memory></process_info>",
        1,
    )
    first, second = parse((DATA / "L-nomig.txt").read_text(), details).devices
    assert "2 uncorrected" in first.device.excluded
    assert first.processes == (DeviceProcess(4711, "python3", 1024 * MIB),)
    assert second.device.excluded is None


def test_nvidia_smi_gives_an_instances_processes_to_that_instance():
    """PLC-02: a foreign process on one MIG instance does not taint the others."""
    details = (DATA / "q-x-mig.xml").read_text()
    process = (
        "<process_info><gpu_instance_id>3</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
        "<pid>4711</pid><process_name>x</process_name><used_memory>[N/A]</used_memory></process_info>"
    )
    cut = details.index("<processes>") + len("<processes>")
    readings = parse((DATA / "L-mig.txt").read_text(), details[:cut] + process + details[cut:]).devices
    assert [len(each.processes) for each in readings] == [0, 1, 0, 0]
    assert readings[1].processes[0].memory_bytes is None


@pytest.mark.parametrize("details", ["", "<nvidia_smi_log>", "No devices were found"])
def test_garbage_from_nvidia_smi_is_an_error(details):
    """PLC-02: unknown is not nothing."""
    with pytest.raises(HardwareError):
        parse("", details)


@pytest.mark.parametrize(
    ("name", "mib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80g"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-40g"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80g"),
        ("NVIDIA H100 NVL", 95830, "h100-94g"),
        ("NVIDIA H200", 143771, "h200-141g"),
        ("NVIDIA B200", 183359, "b200-180g"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96g"),
        ("NVIDIA L4", 23034, "l4-24g"),
        ("NVIDIA L40S", 46068, "l40s-48g"),
        ("Tesla T4", 15360, "t4-16g"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-16g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24g"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000-48g"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada-48g"),
        ("NVIDIA H100 80GB HBM3", None, "h100-80g"),
        ("", None, "gpu"),
    ],
)
def test_device_classes(name, mib, expected):
    """PLC-08: classes people can write in a profile."""
    assert device_class(name, None if mib is None else mib * MIB) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "3g.40gb"),
        ("MIG 1g.10gb+me", "1g.10gb+me"),
        ("MIG 1c.3g.40gb", "1c.3g.40gb"),
        ("NVIDIA H100 80GB HBM3", None),
    ],
)
def test_mig_profiles(name, expected):
    """PLC-08: the profile is read from the name."""
    assert mig_profile(name) == expected


def direct(read):
    return read()


class TestFallback:
    def test_nvml_first_then_nvidia_smi(self, tmp_path):
        """AGT-01: NVML, falling back to nvidia-smi."""
        program = nvidia_smi.install(tmp_path, (DATA / "L-nomig.txt").read_text(), (DATA / "q-x-nomig.xml").read_text())
        nvml = FakeNvml([Card("GPU-nvml")])
        devices = Devices((NvmlReader(nvml), SmiReader(str(program))), direct, driver_sign=tmp_path / "none")
        assert devices.read().devices[0].device.uuid == "GPU-nvml"
        nvml.down = "Driver Not Loaded"
        assert devices.read().devices[0].device.uuid == FIRST
        nvml.down = None
        assert devices.read().devices[0].device.uuid == "GPU-nvml"
        assert nvml.initialised == 2

    def test_devices_that_were_there_are_unknown_not_gone(self, tmp_path):
        """PLC-02: a failing driver is a fault, told in words; it does not empty the inventory."""
        nvml = FakeNvml([Card("GPU-nvml")])
        devices = Devices((NvmlReader(nvml),), direct, driver_sign=tmp_path / "none")
        devices.read()
        nvml.down = "GPU is lost"
        with pytest.raises(HardwareError, match="GPU is lost"):
            devices.read()

    def test_a_node_without_driver_has_none(self, tmp_path):
        """AGT-01: a CPU node is no fault, unless a driver shows signs of life."""
        reader = SmiReader(str(tmp_path / "missing"))
        assert Devices((reader,), direct, driver_sign=tmp_path / "none").read().devices == ()
        with pytest.raises(HardwareError):
            Devices((reader,), direct, driver_sign=tmp_path).read()
        with pytest.raises(HardwareError):
            Devices((reader,), direct, wanted=True, driver_sign=tmp_path / "none").read()

    def test_a_failing_program_says_why(self, tmp_path):
        """Say why: the program's own last words."""
        program = nvidia_smi.install(tmp_path, "", "")
        (tmp_path / "broken").write_text("NVIDIA-SMI has failed because it couldn't communicate with the driver\n")
        with pytest.raises(HardwareError, match="couldn't communicate"):
            SmiReader(str(program)).read()

    def test_modes(self):
        """AGT-01: the setting ``hardware.gpu``."""
        assert choose_readers("off", "x") == ()
        assert [r.name for r in choose_readers("auto", "x")] == ["nvml", "nvidia-smi"]
        assert [r.name for r in choose_readers("nvml", "x")] == ["nvml"]
        assert [r.name for r in choose_readers("nvidia-smi", "x")] == ["nvidia-smi"]


class TestHost:
    def test_this_host(self):
        """AGT-01: everything the inventory says of a host is filled in here."""
        inventory = host.read_host("127.0.0.1", "boot", PortRange(first=20000, last=20999), {"a": "b"})
        assert inventory.cpu.count >= 1
        assert inventory.memory_bytes > 64 * MIB
        for value in (inventory.hostname, inventory.os, inventory.arch, inventory.kernel, inventory.boot_id):
            assert value
        assert inventory.labels == {"a": "b"}

    def test_measurements(self):
        """AGT-02: load and memory; CPU use is unknown until there is something to compare."""
        meter = host.HostMeter()
        measured = meter.read()
        assert measured.cpu_percent is None
        deadline = time.monotonic() + 10
        while (later := meter.read()).cpu_percent is None and time.monotonic() < deadline:
            sum(range(10000))
        assert later.cpu_percent is not None
        assert 0 <= later.cpu_percent <= 100
        assert measured.memory_available_bytes > 0
        assert measured.load1 is not None

    def test_cpu_without_avx2_is_warned_about(self):
        """AGT-01: warn without AVX2, and only when the flags are known."""
        assert "AVX2" in host.cpu_notes(Cpu(flags=("sse2",)), "x86_64")[0]
        assert host.cpu_notes(Cpu(flags=("avx2",)), "x86_64") == ()
        assert host.cpu_notes(Cpu(), "x86_64") == ()
        assert host.cpu_notes(Cpu(flags=("neon",)), "aarch64") == ()

    def test_unreadable_proc_is_unknown(self, tmp_path):
        """PLC-02: unknown is not zero."""
        assert host.read_cpu(tmp_path).model is None
        assert host.read_ephemeral_ports(tmp_path) is None

    def test_overlapping_ports_are_warned_about(self):
        """PLC-13: engines outside the ephemeral range."""
        ephemeral = PortRange(first=32768, last=60999)
        assert host.port_notes(PortRange(first=20000, last=20999), ephemeral) == ()
        assert "overlap" in host.port_notes(PortRange(first=30000, last=40000), ephemeral)[0]
        assert host.port_notes(PortRange(first=30000, last=40000), None) == ()

    def test_a_missing_directory_is_skipped(self, tmp_path):
        """PLC-06: skipped, not zero."""
        (found,) = host.read_filesystems((tmp_path, tmp_path / "missing"))
        assert found.path == str(tmp_path)
        assert found.free_bytes > 0
