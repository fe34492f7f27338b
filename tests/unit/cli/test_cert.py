"""``llmgw ctl cert``: the authority's commands (SEC-01, SEC-08)."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import responses
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.cli.ctl.cert import OF_ROOT, default_authority
from llmgw.identity import authority, pem, root_folder
from llmgw.identity.folder import Folder
from llmgw.identity.names import identity
from llmgw.identity.root_folder import RootFolder
from llmgw.runtime.clock import utc


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run, with an authority of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMGW_AUTHORITY", str(tmp_path / "authority"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return tmp_path


def cert(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["ctl", "cert", *arguments], input=stdin)


def done(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = cert(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = cert(*arguments, stdin=stdin)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output and "PRIVATE" not in result.output
    return result.output


def test_from_nothing_to_a_fleet(place: Path) -> None:
    """SEC-01: three commands make an authority, a control plane and a node that work together."""
    assert "Next, for each control plane" in done("init", "--name", "example")
    sans = ("--san", "cp1.example.org", "--san", "192.0.2.7")
    assert "issuer that signs" in done("issue", "controlplane", "cp1", *sans, "--out", "cp1")
    done("issue", "node", "gpu-7", "--out", "gpu-7")
    facts = authority.facts(Folder(place / "cp1").chain())
    assert facts.dns[0] == "cp1.example.org" and facts.ips[0] == "192.0.2.7"
    assert Folder(place / "cp1").check(kind="controlplane", needs_issuer=True) == []
    assert Folder(place / "gpu-7").check(kind="node", name="gpu-7") == []
    assert authority.facts((place / "authority" / "root.pem").read_bytes()).subject.startswith("example ")


def test_rotated_and_retired(place: Path) -> None:
    """SEC-08: each step says the next."""
    done("init")
    done("issue", "controlplane", "cp1", "--out", "cp1")
    assert "for each control plane:\n  llmgw ctl cert renew DIR\n" in done("init", "--rotate")
    before = Folder(place / "cp1").signer()[0]
    renewed = done("renew", "cp1")
    issuer = authority.facts(Folder(place / "cp1").signer()[0])
    assert Folder(place / "cp1").signer()[0] != before
    assert f"with a new issuer that signs joins and renewals until {utc(issuer.expires_at)}" in renewed
    assert "It trusts 2 roots, until llmgw ctl cert init --retire" in renewed
    assert len(pem.split(Folder(place / "cp1").roots())) == 2
    assert "1 older root dropped" in done("init", "--retire")
    assert "roots" not in done("renew", "cp1")
    assert len(pem.split(Folder(place / "cp1").roots())) == 1
    assert Folder(place / "cp1").check(needs_issuer=True) == []


def test_retiring_names_who_is_behind(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-08: control planes by what the folder knows; for the others, the command that tells."""
    begun = datetime(2030, 1, 1, tzinfo=UTC)

    def at(hours: int) -> None:
        monkeypatch.setattr(root_folder, "_now", lambda: begun + timedelta(hours=hours))

    at(0)
    done("init")
    for name in ("cp1", "cp2"):
        done("issue", "controlplane", name, "--out", name)
    at(1)
    done("init", "--rotate")
    at(2)
    done("renew", "cp1")
    with (place / "authority" / "issued.jsonl").open("a") as journal:
        journal.write('{"at": "20')  # cut off by a crash
    told = done("init", "--retire")
    assert "The control plane cp2 still signs under an older root" in told and "plane cp1" not in told
    assert "llmgw ctl cert list --issued-before 2030-01-01T02:00:00Z\n" in told


@responses.activate
def test_who_has_an_older_certificate() -> None:
    """SEC-08: those that were revoked show none, and the moment itself is not before it."""
    common = {"kind": "node", "enrolled_at": "2030-01-01T00:00:00Z", "enrolled_by": "t", "version": 1}
    moments = {"issued_at": "2030-01-02T00:00:00Z", "expires_at": "2130-01-01T00:00:00Z"}
    rows = [
        {**common, **moments, "name": "old"},
        {**common, **moments, "name": "new", "issued_at": "2030-01-03T00:00:00Z"},
        {**common, **moments, "name": "gone", "revoked_at": "2030-01-02T12:00:00Z"},
        {**common, "name": "unseen"},
    ]
    responses.get("http://127.0.0.1:7000/api/v1/identities", json={"identities": rows})

    def names(before: str) -> list[str]:
        listed = json.loads(done("list", "--issued-before", before, "-o", "json"))
        return [row["name"] for row in listed["identities"]]

    assert names("2030-01-03T00:00:00Z") == names("2030-01-03") == ["old"]
    assert names("2030-01-03T00:00:01Z") == ["old", "new"]
    assert "from before that" in done("list", "--issued-before", "2030-01-02")
    assert "is no moment" in refused("list", "--issued-before", "yesterday")
    assert "exclude each other" in refused("list", "--issued-before", "2030-01-02", "--revoked")


def test_signed_for_a_key_made_elsewhere(place: Path) -> None:
    """SEC-01: the certificate alone goes to standard output, or into a file."""
    done("init")
    key = authority.new_key()
    (place / "gpu-7.csr").write_bytes(authority.request(identity("node", "gpu-7"), key))
    result = cert("sign", "gpu-7.csr", "node", "gpu-7", "--days", "7")
    assert authority.same_key(result.stdout.encode(), key)
    assert result.stdout.startswith("-----BEGIN CERTIFICATE") and "serial" in result.stderr
    again = cert("sign", "-", "node", "gpu-7", stdin=(place / "gpu-7.csr").read_bytes())
    assert authority.same_key(again.stdout.encode(), key)
    done("sign", "gpu-7.csr", "router", "edge-1", "--out", "edge.pem")
    assert pem.presented((place / "edge.pem").read_bytes()).identity == identity("router", "edge-1")
    assert "--force" in refused("sign", "gpu-7.csr", "router", "edge-1", "--out", "edge.pem")
    done("sign", "gpu-7.csr", "router", "edge-1", "--out", "edge.pem", "--force")


def test_nothing_is_replaced_unasked(place: Path) -> None:
    """SEC-01: a second run of a script changes nothing."""
    done("init")
    assert "--rotate" in refused("init")
    done("issue", "node", "gpu-7", "--out", "gpu-7")
    before = Folder(place / "gpu-7").signature()
    assert "--force" in refused("issue", "node", "gpu-7", "--out", "gpu-7")
    assert Folder(place / "gpu-7").signature() == before
    done("issue", "node", "gpu-7", "--out", "gpu-7", "--force")
    done("init", "--force")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("issue", "node", "gpu 7", "--out", "x"), "letters, digits"),
        (("issue", "nodes", "gpu-7", "--out", "x"), "is not one of"),
        (("issue", "node", "gpu-7"), "--out"),
        (("issue", "node", "gpu-7", "--out", "x", "--san", "y"), "--san is for control planes"),
        (("issue", "controlplane", "cp1", "--out", "x", "--san", "a b"), "no host name"),
        (("issue", "node", "gpu-7", "--out", "x", "--days", "0"), "range"),
        (("issue", "node", "gpu-7", "--out", "file/x"), "file: is no directory"),
        (("sign", "none.csr", "node", "gpu-7"), "none.csr: No such file"),
        (("sign", "file", "node", "gpu-7"), "cannot be read"),
        (("sign", "/dev/zero", "node", "gpu-7"), "no regular file"),
        (("renew", "none"), "does not exist"),
        (("init", "--rotate", "--retire"), "exclude each other"),
        (("init", "--retire"), "no older root"),
        (("issue", "node", "gpu-7", "--out", "x", "--authority", "none"), "llmgw ctl cert init"),
        (("init", "--authority", "file"), "file: is no directory"),
    ],
)
def test_faults_in_words(place: Path, arguments: tuple[str, ...], words: str) -> None:
    """SEC-01: every fault names the place and the remedy."""
    done("init")
    (place / "file").write_text("nonsense")
    assert words in refused(*arguments)


def test_of_another_authority(place: Path) -> None:
    """SEC-01: what is not ours is taken over only if that is meant."""
    done("init")
    RootFolder(place / "others").init("others")
    done("issue", "node", "gpu-7", "--out", "gpu-7", "--authority", str(place / "others"))
    assert "not of this authority" in refused("renew", "gpu-7")
    assert "issuer" not in done("renew", "gpu-7", "--force")
    assert Folder(place / "gpu-7").check() == []


def test_where_the_authority_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SEC-01: root has the machine's, others their own."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_authority() == OF_ROOT
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_authority() == tmp_path / ".config" / "llmgw" / "authority"


def test_help_needs_nothing_large() -> None:
    """CLI-01: help and completion stay quick: cryptography is loaded when something is signed."""
    code = (
        "import sys; from click.testing import CliRunner; from llmgw.cli import main\n"
        "done = CliRunner().invoke(main, ['ctl', 'cert', '--help'])\n"
        "CliRunner().invoke(main, ['join', '--help'])\n"
        "print(done.exit_code, 'cryptography' in sys.modules, 'ssl' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["0", "False", "False"]
