"""cluster.toml: what is written is read back, and what is wrong is named."""

import math
import textwrap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import BadInput
from cutset.partition.cluster import cluster_file
from cutset.partition.cluster.cluster_file import load, read, save, to_toml
from cutset.partition.cluster.machines import (
    MAX_MACHINES,
    Cluster,
    Machine,
    NetworkLink,
    Rate,
    SharedCard,
    SharedCores,
    uniform_cluster,
)
from cutset.partition.operators.sharding.cost_class import CLASSES

ONE = '[[machine]]\nname = "a"\nflops = "50 GFLOP/s"\nmemory = "16 GB"\n'
TWO = '[network]\nbandwidth = "1 Gbit/s"\nlatency = "0.2 ms"\n' + ONE + "count = 2\n"
EXAMPLE = textwrap.dedent(str(cluster_file.__doc__).split("\n\n", 1)[1].rpartition("\n\n")[0])


# What is read -------------------------------------------------------------------------------------------------------


def test_the_documented_example_is_read():
    cluster = read(EXAMPLE)
    desk = cluster.machines[0]
    assert [m.name for m in cluster.machines] == ["desk 0", "desk 1", "shelf"]
    assert [m.address for m in cluster.machines] == ["", "", "user@lab3"]
    assert cluster.machines[2].python == "/opt/cutset/bin/python"
    assert (cluster.bandwidth, cluster.latency_s) == (125e6, 2e-4)
    assert (desk.flops_per_s, desk.memory_bytes, desk.memory_bandwidth) == (50e9, 16 * 10**9, 10e9)
    assert (desk.operator_s, desk.gradient_s, desk.segment_s, desk.segment_back_s) == (25e-6, 10e-6, 20e-6, 25e-6)
    assert (desk.message_s, desk.step_s) == (80e-6, 60e-6)
    assert desk.rates["pooling"] == Rate(1e9, 1e9, 25e-6, 10e-6)
    assert desk.rates["convolution"] == Rate(60e9, 40e9, 50e-6, 20e-6)
    assert (desk.bandwidth_out, desk.bandwidth_in, desk.latency_s) == (12.5e6, 125e6, 5e-3)
    assert cluster.links == (NetworkLink(0, 1, 1.25e9, 50e-6), NetworkLink(1, 0, 2.5e9, 40e-6))
    assert cluster.shared == (SharedCores((0, 1), 2, 1.3, 4e9, network_per_s=5e8),)
    assert desk.process_bytes == 250 * 10**6


def test_machines_that_share_cores_are_written_and_selected():
    cluster = replace(uniform_cluster(3), shared=(SharedCores((0, 2), 2, 1.25),))
    copying = replace(cluster, shared=(SharedCores((0, 2), 2, 1.25, 1e9, network_per_s=1e8),))
    assert read(to_toml(cluster)) == cluster
    assert read(to_toml(copying)) == copying
    assert (copying.copies_between(2, 0), copying.copies_between(0, 1)) == (1e9, None)
    assert cluster.copies_between(2, 0) is None
    assert cluster.select([2, 0]).shared == (SharedCores((1, 0), 2, 1.25),)
    assert cluster.select([0, 1]).shared == ()
    assert copying.select([1, 0]).shared == (SharedCores((1,), 2, 1.25, 1e9, network_per_s=1e8),)
    assert [copying.select([1, 0]).handling_s(machine, 50) for machine in (0, 1)] == [0.0, pytest.approx(5e-7)]
    assert copying.select([1]).shared == ()


def test_one_machine_needs_no_network():
    (machine,) = read(ONE).machines
    assert machine == Machine("a", 50e9, 16 * 10**9)


def test_machines_of_a_host_have_links_among_them():
    inside = '[network.inside]\nbandwidth = "10 Gbit/s"\nlatency = "50 us"\n'
    text = (
        TWO.replace(ONE, inside + ONE) + 'host = "left"\n' + ONE.replace('"a"', '"b"') + 'host = "right"\ncount = 2\n'
    )
    cluster = read(text + ONE.replace('"a"', '"c"'))
    assert {(link.source, link.target) for link in cluster.links} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert {(link.bandwidth, link.latency_s) for link in cluster.links} == {(1.25e9, 50e-6)}
    assert cluster.cards == (SharedCard("left", (0, 1)), SharedCard("right", (2, 3)))


def test_machines_of_a_host_share_its_card_but_those_with_their_own():
    inside = '[network.inside]\nbandwidth = "10 Gbit/s"\nlatency = "50 us"\n'
    alike = 'host = "left"\ncount = 3\n' + ONE.replace('"a"', '"b"') + 'host = "left"\n'
    own = '[machine.network]\nout = "2 Gbit/s"\n' + ONE.replace('"a"', '"c"')
    quick = '[[link]]\nfrom = "a 2"\nto = "a 1"\nbandwidth = "40 Gbit/s"\nlatency = "50 us"\n'
    cluster = read(TWO.replace(ONE + "count = 2\n", inside + ONE) + alike + own + quick)
    assert cluster.cards == (SharedCard("left", (0, 1, 2)),)
    assert cluster.shared_card(3) is None
    assert len(cluster.links) == 4 * 3
    text = to_toml(cluster)
    assert text.count("[[link]]") == 1 + 2 * 3, "the quick one, and those of the machine with a card of its own"
    again = read(text)
    assert replace(again, links=()) == replace(cluster, links=())
    assert set(again.links) == set(cluster.links)
    assert cluster.select([4, 2, 0]).cards == (SharedCard("left", (1, 2)),)
    assert cluster.select([2, 3, 4]).cards == ()


def test_the_start_costs_of_a_rate_are_the_machines_where_it_says_none():
    text = ONE + '[machine.costs]\noperator = "7 us"\n[machine.rates]\nloss = {forward = "1 GFLOP/s", start = "9 us"}\n'
    assert read(text).machines[0].rates == {"loss": Rate(1e9, 1e9, 9e-6, Machine("a").gradient_s)}


# What is written ----------------------------------------------------------------------------------------------------

positive = st.floats(1.0, 1e15)
times = st.floats(0.0, 1e3)
rates = st.builds(Rate, positive, positive, times, times)
names = st.text(min_size=1, max_size=6).filter(lambda name: name.strip() and name.isprintable())


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    machines = []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        machine = Machine(
            name,
            draw(positive),
            draw(st.integers(1, 1 << 50)),
            draw(st.dictionaries(st.sampled_from(CLASSES), rates, max_size=2)),
            draw(positive),
            *(draw(times) for _ in range(6)),
            bandwidth_out=draw(st.none() | positive),
            latency_s=draw(st.none() | times),
        )
        count = draw(st.integers(0, 3))
        machines += [replace(machine, name=f"{name} {i}") for i in range(count)] or [machine]
    if len({m.name for m in machines}) < len(machines):
        machines = machines[:1]
    pairs = [(a, b) for a in range(len(machines)) for b in range(len(machines)) if a != b]
    links = [NetworkLink(a, b, draw(positive), draw(times)) for a, b in pairs if draw(st.booleans())]
    return Cluster(tuple(machines), draw(positive), draw(times), tuple(links))


@given(clusters())
@pytest.mark.run
def test_a_cluster_comes_back_from_its_file_to_the_last_bit(cluster):
    assert read(to_toml(cluster, note="two\nlines")) == cluster


def test_machines_alike_are_one_entry(tmp_path):
    path = tmp_path / "cluster.toml"
    save(uniform_cluster(300), path, note="by hand")
    text = path.read_text()
    assert text.startswith("# by hand\n")
    assert text.count("[[machine]]") == 1
    assert "count = 300" in text
    assert load(path) == uniform_cluster(300)
    assert list(tmp_path.iterdir()) == [path]


def test_machines_with_an_address_come_back_one_by_one():
    machine = Machine("lab", address="me@[fe80::1%eth0]", python="/opt/my tools/python")
    machines = (replace(machine, name="lab 0"), replace(machine, name="lab 1"))
    assert read(to_toml(Cluster(machines))).machines == machines


def test_a_name_without_letters_stays_as_it_is():
    cluster = uniform_cluster(2)
    cluster = replace(cluster, machines=tuple(replace(m, name=f"  {i}") for i, m in enumerate(cluster.machines)))
    assert read(to_toml(cluster)) == cluster


# What is wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", "E352", "names no machine"),
        ("machine = []", "E352", "names no machine"),
        ("[[machine]\n", "E351", "line 1"),
        (ONE + "flops = 3\n", "E351", "line 5"),
        ("a = " + "[" * 5000, "E351", "is not TOML"),
        ("a = " + "9" * 5000, "E351", "is not TOML"),
        (ONE + "[netwrok]\n", "E357", "netwrok"),
        (ONE.replace("flops", "flop"), "E357", "machine[0].flop"),
        (ONE + "cores = 4\n", "E357", "machine[0].cores"),
        (ONE + '"two\\nlines" = 4\n', "E357", "machine[0].two\nlines is not known"),
        (ONE + '"x - at `$.y" = 4\n', "E357", "machine[0].x - at `$.y is not known"),
        (ONE + '[machine.costs]\nmesage = "1 us"\n', "E357", "machine[0].costs.mesage"),
        (ONE + '[machine.rates]\nconvolutions = "1 GFLOP/s"\n', "E357", "machine[0].rates.convolutions"),
        (ONE + '[machine.rates]\nloss = { foward = "1 GFLOP/s" }\n', "E357", "machine[0].rates.loss.foward"),
        (ONE + '[machine.rates]\nloss = { start = "1 us" }\n', "E358", "machine[0].rates.loss has no forward"),
        (ONE.replace('name = "a"\n', ""), "E358", "machine[0] has no name"),
        (ONE.replace('flops = "50 GFLOP/s"\n', ""), "E358", "machine[0] has no flops"),
        (ONE + ONE.replace('"a"', '"b"').replace('memory = "16 GB"\n', ""), "E358", "machine[1] has no memory"),
        (ONE.replace('"a"', '""'), "E355", "machine[0].name ''"),
        (ONE.replace('"a"', "7"), "E355", "machine[0].name 7"),
        (ONE.replace('"50 GFLOP/s"', "-5e10"), "E355", "machine[0].flops -50000000000.0 is negative"),
        (ONE.replace('"50 GFLOP/s"', "0"), "E355", "machine[0].flops 0 is too small"),
        (ONE.replace('"50 GFLOP/s"', "nan"), "E355", "machine[0].flops nan"),
        (ONE.replace('"50 GFLOP/s"', "inf"), "E355", "machine[0].flops inf"),
        (ONE.replace('"50 GFLOP/s"', '"50 GHz"'), "E355", "has the unit 'GHz'"),
        (ONE.replace('"16 GB"', '"16 GB/s"'), "E355", "has the unit 'GB/s'"),
        (ONE.replace('"16 GB"', '"16 x - at `$.y`"'), "E355", "has the unit 'x - at `$.y`'"),
        (ONE.replace('"16 GB"', "true"), "E355", "machine[0].memory True"),
        (ONE + "count = 0\n", "E355", "machine[0].count 0 is no positive integer"),
        (ONE + "count = 1.5\n", "E355", "machine[0].count 1.5"),
        (ONE + 'count = 2\naddress = "lab1"\n', "E355", "machine[0].address is that of one machine, and count is 2"),
        (ONE + 'address = ""\n', "E355", "machine[0].address ''"),
        (ONE + 'address = "-oProxyCommand=true"\n', "E355", "machine[0].address '-oProxyCommand=true'"),
        (ONE + 'address = "lab1;true"\n', "E355", "machine[0].address 'lab1;true'"),
        (ONE + 'address = "lab1\\n"\n', "E355", "machine[0].address"),
        (ONE + 'python = "-c"\n', "E355", "machine[0].python '-c'"),
        (ONE + f"count = {MAX_MACHINES + 1}\n", "E353", f"{MAX_MACHINES + 1} machines"),
        (ONE + ONE, "E354", "machine[1].name 'a' is also the name of machine[0]"),
        (ONE + "count = 2\n" + ONE.replace('"a"', '"a 1"'), "E354", "'a 1' is also the name of machine[0]"),
        (ONE + "count = 2\n", "E358", "network has no bandwidth"),
        (TWO.replace('latency = "0.2 ms"\n', ""), "E358", "network has no latency"),
        (TWO.replace('"1 Gbit/s"', '"1 Gbit"'), "E355", "network.bandwidth '1 Gbit'"),
        (TWO + '[[link]]\nfrom = "a 0"\nto = "a 2"\nbandwidth = 1e9\nlatency = 0\n', "E356", "link[0].to 'a 2'"),
        (TWO + '[[link]]\nfrom = "a 0"\nto = "a 0"\nbandwidth = 1e9\nlatency = 0\n', "E356", "link[0].to 'a 0'"),
        (TWO + '[[link]]\nfrom = "a 0"\nto = "a 1"\nlatency = 0\n', "E358", "link[0] has no bandwidth"),
        (TWO + '[[link]]\nto = "a 1"\nbandwidth = 1e9\nlatency = 0\n', "E358", "link[0] has no from"),
        (TWO + '[[shared]]\nmachines = ["a 0", "a 2"]\ncores = 1\n', "E356", "shared[0].machines 'a 2'"),
        (TWO + 2 * '[[shared]]\nmachines = ["a 0"]\ncores = 1\n', "E354", "also in shared[0]"),
        (TWO + '[[shared]]\nmachines = ["a 0"]\ncores = 1\ncontention = 0.5\n', "E355", "contention 0.5 is too small"),
        (TWO + 2 * '[[link]]\nfrom = "a 0"\nto = "a 1"\nbandwidth = 1e9\nlatency = 0\n', "E354", "link[1]"),
        ("machine = 3\n", "E355", "machine 3 is no list of tables"),
        ('[machine]\nname = "a"\n', "E355", "machine is no list of tables"),
        ("network = 3\n" + ONE, "E355", "network 3 is no table"),
        (TWO + 'host = "left"\n', "E358", "machines have hosts, as 'left', and network has no inside"),
        (TWO + "[network.inside]\nbandwidth = 1e9\nlatency = 0\n", "E358", "no machine has a host"),
        (TWO + "[network.inside]\nbandwidth = 1e9\n", "E358", "network.inside has no latency"),
        (ONE + "host = 3\n", "E355", "machine[0].host 3"),
        (ONE + "address = 3\n", "E355", "machine[0].address 3"),
        (ONE + "rates = 3\n", "E355", "machine[0].rates 3 is no table"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_the_value_and_a_fix(text, code, said):
    with pytest.raises(BadInput) as caught:
        read(text, name="mine.toml")
    assert caught.value.code == code
    assert "mine.toml" in caught.value.facts
    assert said in caught.value.facts
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (ONE.replace("flops", "flop"), "flops"),
        (TWO.replace("bandwidth", "bandwith"), "bandwidth"),
        (ONE + '[machine.rates]\nconvolutions = "1 GFLOP/s"\n', "convolution"),
        (TWO + '[[link]]\nfrom = "a 0"\nto = "a1"\nbandwidth = 1e9\nlatency = 0\n', "a 1"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(text, meant):
    with pytest.raises(BadInput) as caught:
        read(text)
    assert f"did you mean {meant}?" in caught.value.fix


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(BadInput, match="E350"):
        load(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="E350"):
        load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="E351"):
        load(tmp_path / "binary.toml")
    with pytest.raises(BadInput, match="E359"):
        save(uniform_cluster(1), tmp_path / "none" / "cluster.toml")


def test_what_a_machine_states_is_never_a_number_that_cannot_be_used():
    cluster = read(EXAMPLE)
    numbers = [v for m in cluster.machines for v in vars(m).values() if isinstance(v, float)]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
