"""``llmgw init``: the first set-up of one machine (CLI-04).

May be run again at any time: what is there stays, what is missing is added. Secrets go to
files of mode 0600 and, for the first API key, to standard output; never to the log, nor
to the arguments of a process.
"""

import getpass
import os
import pwd
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from controlplane.catalog.load import load_catalog
from controlplane.commands import firsts
from controlplane.commands.shared import actor, example, opened, say
from controlplane.commands.site import Answers, Site, write
from controlplane.commands.vouch import lacking, vouch
from controlplane.settings import load
from controlplane.store.database import Database
from controlplane.store.errors import StoreError
from controlplane.store.move import reading
from controlplane.store.opening import backend_of, url_fault
from llmgw.identity.names import valid_name
from llmgw.identity.root_folder import RootFolder
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.files import private_directory
from llmgw.runtime.settings import Loaded, parse_address

PASSWORD_FILE = "database.password"  # noqa: S105 - a file's name


def _is_root() -> bool:
    return os.geteuid() == 0


def default_directory() -> Path:
    """Where settings go: /etc/llmgw for root, ~/.config/llmgw for others."""
    return Path("/etc/llmgw") if _is_root() else home() / ".config" / "llmgw"


def default_state() -> Path:
    """Where the parts keep what they know: /var/lib/llmgw for root, ~/.local/state/llmgw for others."""
    return Path("/var/lib/llmgw") if _is_root() else home() / ".local" / "state" / "llmgw"


def home() -> Path:
    """The home directory of the user that we are; another's, which sudo may leave in HOME, is not."""
    named = os.environ.get("HOME", "")
    if named and Path(named).is_dir() and Path(named).stat().st_uid == os.geteuid():
        return Path(named)
    return Path(pwd.getpwuid(os.geteuid()).pw_dir)


def who() -> str:
    """The person: whoever became root by sudo, else the user that we are."""
    try:
        name = (os.environ.get("SUDO_USER") or getpass.getuser()).lower()
    except (KeyError, OSError):
        return "admin"
    return "admin" if firsts.name_fault(name) else name


# ---------------------------------------------------------------- the command


@click.command(
    epilog=example(
        "llmgw init",
        "llmgw init --yes",
        "llmgw init --yes --store postgresql://llmgw@db.example:5432/llmgw --password-file /etc/llmgw/db-password",
        "KEY=$(llmgw init --yes)",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--yes", "-y", "unasked", is_flag=True, help="Ask nothing: take the defaults and the options given.")
@click.option("--force", is_flag=True, help="Write settings files and the catalog anew. Identities and the store stay.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Settings, catalog and authority.")
@click.option("--state-dir", "state", type=click.Path(path_type=Path), metavar="DIR", help="What the parts keep.")
@click.option("--store", metavar="URL", help="sqlite (default), or postgresql://USER@HOST:PORT/DATABASE.")
@click.option("--password-file", type=click.Path(path_type=Path), metavar="FILE", help="Its password (mode 0600).")
@click.option("--node", metavar="NAME", help="This machine's name in the fleet (default: the host's).")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8080", help="Where clients connect.", show_default=True
)
@click.option(
    "--admin-listen", "admin", metavar="HOST:PORT", default="127.0.0.1:7000", help="The admin API.", show_default=True
)
@click.option(
    "--agents-listen", "agents", metavar="HOST:PORT", default="127.0.0.1:7001", help="For agents.", show_default=True
)
@click.option(
    "--routers-listen", "routers", metavar="HOST:PORT", default="127.0.0.1:7002", help="For routers.", show_default=True
)
@click.option(
    "--join-listen", "join", metavar="HOST:PORT", default="127.0.0.1:7003", help="For who joins.", show_default=True
)
@click.option("--engine-ports", metavar="A-B", default="20000-20999", help="For engines.", show_default=True)
@click.option("--user", metavar="NAME", help="The first administrator (default: you, also under sudo).")
@click.option(
    "--key", "key_name", metavar="NAME", default="first", help="Name of the first API key.", show_default=True
)
@click.pass_context
def init(context: click.Context, /, unasked: bool, force: bool, **given: Any) -> None:
    """Set up one machine: settings, identities, store, first administrator, first API key.

    The API key alone goes to standard output, this once. May be run again: what is there
    stays, what is missing is added.
    """
    if not unasked and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask questions on: give --yes, and options for other answers")
    ask = _Asking(context, unasked)
    site = Site(_answers(ask, given))
    user = ask.text("user", given["user"] or who(), "Name of the first administrator", firsts.name_fault)
    lacking(site)
    site.make_directories()
    _write_files(ask, site, force)
    settings = _check_files(site)
    vouch(site)
    key = _fill_store(settings, user, given["key_name"])
    _what_next(site, settings, key)
    if key is not None:
        click.echo(key)


class _Asking:
    """Questions, unless nothing is to be asked or an option answered them."""

    def __init__(self, context: click.Context, unasked: bool) -> None:
        self.unasked = unasked
        self._context = context

    def given(self, name: str) -> bool:
        """Whether the option was given."""
        source = self._context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    def text(self, name: str, value: Any, question: str, check: Callable[[str], str] = lambda _: "") -> str:
        """The answer. ``check`` says what is wrong with one."""
        answer = str(value)
        if not self.unasked and not self.given(name):
            while True:
                answer = click.prompt(question, default=answer, err=True)
                fault = check(answer)
                if not fault:
                    return answer
                say(f"  {fault}")
        if fault := check(answer):
            raise click.UsageError(f"--{name.replace('_', '-')} {fault}")
        return answer

    def confirm(self, question: str) -> bool:
        """Yes or no; no if nothing is to be asked."""
        return not self.unasked and click.confirm(question, default=False, err=True)


# ---------------------------------------------------------------- answers


def _answers(ask: _Asking, given: dict[str, Any]) -> Answers:
    directory = Path(ask.text("directory", given["directory"] or default_directory(), "Directory for settings"))
    state = Path(ask.text("state", given["state"] or default_state(), "Directory for what the parts keep"))
    directory, state = directory.expanduser().absolute(), state.expanduser().absolute()
    store, password_file = _store(ask, given, directory)
    node = given["node"] or socket.gethostname()
    return Answers(
        directory=directory,
        state=state,
        store=store,
        password_file=password_file,
        node=ask.text("node", node, "Name of this machine", _node_fault),
        listen=ask.text("listen", given["listen"], "Where clients connect", _address_fault),
        admin=ask.text("admin", given["admin"], "Where the admin API answers", _loopback_fault),
        agents=ask.text("agents", given["agents"], "Where agents connect", _address_fault),
        routers=ask.text("routers", given["routers"], "Where routers connect", _address_fault),
        join=ask.text("join", given["join"], "Where nodes and routers get their certificate", _address_fault),
        engine_ports=given["engine_ports"],
    )


def _node_fault(name: str) -> str:
    return "" if valid_name(name) and len(name) < 240 else "must be letters, digits, dots, dashes and underscores"


def _address_fault(text: str) -> str:
    try:
        parse_address(text)
    except ValueError as error:
        return str(error)
    return ""


def _loopback_fault(text: str) -> str:
    fault = _address_fault(text)
    if fault or parse_address(text).loopback:
        return fault
    return "must be a loopback address such as 127.0.0.1:7000"


def _store(ask: _Asking, given: dict[str, Any], directory: Path) -> tuple[str, Path | None]:
    """Which database; one that is named is tried."""
    while True:
        url = ask.text(
            "store", given["store"] or "sqlite", "Store: sqlite, or postgresql://USER@HOST:PORT/DATABASE", _url
        )
        if url == "sqlite":
            return "", None
        file: Path | None = given["password_file"]
        password = ""
        if file is None and not ask.unasked:
            password = click.prompt(
                "Its password (empty: none)", default="", hide_input=True, show_default=False, err=True
            )
        if password:
            file = directory / PASSWORD_FILE
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write(file, f"{password}\n")
        file = file and file.expanduser().absolute()
        try:
            with reading(backend_of(url, file, directory)):
                return url, file
        except StoreError as error:
            if ask.unasked or ask.given("store"):
                raise
            say(f"  {error}")


def _url(text: str) -> str:
    if text == "sqlite":
        return ""
    if text.startswith("sqlite:"):
        return "must be sqlite, which lies in the state directory, or postgresql://USER@HOST:PORT/DATABASE"
    return url_fault(text)


# ---------------------------------------------------------------- files


def _write_files(ask: _Asking, site: Site, force: bool) -> None:
    for file, content in site.contents().items():
        if not file.exists():
            write(file, content)
            say(f"wrote {file}")
        elif file.read_text(errors="replace") == content:
            say(f"{file} is there already")
        elif force or ask.confirm(f"{file} is there already: write it anew?"):
            write(file, content)
            say(f"wrote {file} anew")
        else:
            say(f"{file} is there already, with other content: kept")


def _check_files(site: Site) -> Loaded:
    """What will be used is what the files say, also those that were kept. Raises ``SettingsError``."""
    settings = load(site.controlplane, os.environ)
    load_catalog(settings["catalog"])
    return settings


# ---------------------------------------------------------------- store


def _fill_store(settings: Loaded, user: str, key_name: str) -> str | None:
    """Tables, the first administrator and the first API key. Returns the key, if it was made."""
    private_directory(settings["state_dir"])
    with opened(settings) as database:
        return _first_things(database, user, key_name, settings)


def _first_things(database: Database, user: str, key_name: str, settings: Loaded) -> str | None:
    now = SystemClock().now().timestamp()
    by = actor("init")
    known = database.transact(firsts.known)
    if known.administrators:
        say(f"there is an administrator already: {', '.join(known.administrators[:3])}")
    else:
        file = firsts.token_file(home(), settings["state_dir"])
        token = firsts.new_token()
        write(file, f"{token}\n")
        try:
            database.transact(lambda tx: firsts.add_administrator(tx, user, token, by, now))
        except BaseException:
            file.unlink()
            raise
        say(f"made the administrator {user}, with a token in {file}")
        if file.parent != home() / ".config" / "llmgw":
            say(f"  (a token of something else is in the usual place: use llmgw --token-file {file})")
    if known.keys:
        say(f"there are API keys already ({known.keys}): make another with llmgw keys create NAME")
        return None
    key = firsts.new_key()
    database.transact(lambda tx: firsts.add_key(tx, key_name, key, by, now))
    return key


# ---------------------------------------------------------------- the end


def _what_next(site: Site, settings: Loaded, key: str | None) -> None:
    api = settings["admin.listen"]
    prefix = "" if str(api) == "127.0.0.1:7000" else f"LLMGW_API=http://{api} "
    say("")
    say("Start the three parts, each in its own terminal:")
    say(f"  llmgw server --config {site.controlplane}")
    say(f"  llmgw agent  --config {site.agent}")
    say(f"  llmgw router --config {site.router}")
    say("")
    say("Then:")
    say(f"  {prefix}llmgw ctl status")
    say(f"  add a model: {prefix}llmgw ctl model add --help")
    say(f"  or write it into {settings['catalog']} (it shows one to try), then: {prefix}llmgw ctl catalog reload")
    say(f"  add a machine: {prefix}llmgw ctl nodes add NAME")
    say(f"  point clients at http://{site.answers.listen}/v1, with an API key")
    say("")
    key_file = RootFolder(site.authority).key
    if key_file.exists():
        say(f"Whoever has {key_file} can make nodes and routers of this fleet: keep a copy where nobody")
        say("else can read it. It is needed again for another control plane, or once this one's issuer expires.")
    if key is not None:
        say("")
        where = "" if sys.stdout.isatty() else ", on standard output"
        say(f"The API key, shown this once{where}:")
