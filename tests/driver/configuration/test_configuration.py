"""The sources of the configuration, their order of precedence, and the values that are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild.driver import configuration
from trtbuild.driver.configuration import Configuration, TrustSettings, WorkersSettings
from trtbuild.errors import ConfigurationError, ConfigurationErrors
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust.signing import Signer, parse_trusted

#: Two public keys as text: a name, a colon, and 32 bytes in base64.
KEY = "ci:" + "A" * 43 + "="
OTHER = "old:" + "B" * 42 + "A="

ALL_ENTRIES = f"""\
[cache]
max_size = "50GiB"

[[remote]]
name = "team"
url = "https://cache.example/trtbuild"
mode = "rw"
[[remote]]
name = "archive"
url = "s3://bucket/prefix/"
mode = "r"
patience_s = 10
connections = 4

[trust]
keys = ["{KEY}"]
revoked = ["{OTHER}"]
signing_key_file = "~/.config/trtbuild/ci.key"
domain = "ci"
read_domains = ["release", "ci"]

[matrix]
sm_89 = ["self-hosted", "l4"]
sm_120 = "gpu rtx"
[workers]
scheduler = "tls://10.0.0.1:8786"
ca = "~/certificates/ca.pem"
cert = "~/certificates/cert.pem"
key = "~/certificates/key.pem"
wait = "90s"
"""


class Home:
    """A home directory, in which `write` writes the configuration file, and a project outside it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "home"
        self.file = self.root / ".config" / "trtbuild" / "config.toml"
        self.file.parent.mkdir(parents=True)
        self.project = root / "project"
        self.project.mkdir()

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.file.chmod(0o600)

    def load(self, text: str | None = None, **variables: str) -> Configuration:
        """Load the configuration with these environment variables, and with `text` as the file."""
        if text is not None:
            self.write(text)
        return configuration.load({"HOME": str(self.root), **variables}, self.project)

    def load_error(self, text: str | None = None, **variables: str) -> ConfigurationError:
        with pytest.raises(ConfigurationError) as caught:
            self.load(text, **variables)
        assert caught.value.hint
        return caught.value


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_every_entry_of_the_file_is_read(home: Home) -> None:
    result = home.load(ALL_ENTRIES)
    assert result.cache_max_size == 50 << 30
    assert result.remotes == (
        RemoteSettings("team", "https://cache.example/trtbuild", read=True, write=True),
        RemoteSettings("archive", "s3://bucket/prefix", read=True, write=False, patience_s=10.0, connections=4),
    )
    assert result.trust == TrustSettings(
        keys=(parse_trusted(KEY),),
        revoked=frozenset({parse_trusted(OTHER).public_key}),
        signing_key_file=home.root / ".config/trtbuild/ci.key",
        domain="ci",
        read_domains=("release", "ci"),
    )
    assert result.runners == {89: ("self-hosted", "l4"), 120: ("gpu rtx",)}
    certificates = home.root / "certificates"
    files = (certificates / "ca.pem", certificates / "cert.pem", certificates / "key.pem")
    assert result.workers == WorkersSettings("tls://10.0.0.1:8786", *files, 90.0)
    assert result.path == str(home.file)
    assert result.sha256 is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[workers]\nwait = "soon"\n', "'soon' is not a time to wait"),
        ('[workers]\nca = "ca.pem"\n', "ca 'ca.pem' is not an absolute path"),
        ('[workers]\nadress = "x"\n', "'adress' is not known here"),
    ],
)
def test_a_wrong_entry_of_workers_is_an_error_with_its_line(home: Home, text: str, problem: str) -> None:
    error = home.load_error(text)
    assert error.text == problem
    assert error.line == 2


def test_every_entry_has_a_variable_that_overrides_it(home: Home) -> None:
    variables = {
        "TRTBUILD_CACHE_MAX_SIZE": "1GiB",
        "TRTBUILD_REMOTES": "a=r:http://127.0.0.1:1/x  b-2=w:file:///mnt/cache/",
        "TRTBUILD_REMOTE_B_2_PATIENCE_S": "0.5",
        "TRTBUILD_REMOTE_B_2_CONNECTIONS": "1",
        "TRTBUILD_TRUSTED_KEYS": f"{OTHER};expires=2030-01-31;domains=ci,release",
        "TRTBUILD_REVOKED_KEYS": KEY,
        "TRTBUILD_SIGNING_KEY": Signer.new("ci").text(),
        "TRTBUILD_DOMAIN": "pr-17",
        "TRTBUILD_READ_DOMAINS": "release pr-17",
        "TRTBUILD_MATRIX": "sm_90=h100  sm_89=self-hosted,l4",
        "TRTBUILD_WORKERS": "local:2",
        "TRTBUILD_WORKERS_CA": "/ca.pem",
        "TRTBUILD_WORKERS_CERT": "/cert.pem",
        "TRTBUILD_WORKERS_KEY": "/key.pem",
        "TRTBUILD_WORKERS_WAIT": "2m",
    }
    assert set(configuration.VARIABLES) - {"TRTBUILD_SIGNING_KEY_FILE"} == {
        name for name in variables if not name.startswith("TRTBUILD_REMOTE_")
    }
    for text in (ALL_ENTRIES, ""):
        result = home.load(text, **variables)
        assert result.cache_max_size == 1 << 30
        files = (Path("/ca.pem"), Path("/cert.pem"), Path("/key.pem"))
        assert result.workers == WorkersSettings("local:2", *files, 120.0)
        assert result.remotes == (
            RemoteSettings("a", "http://127.0.0.1:1/x", read=True, write=False),
            RemoteSettings("b-2", "file:///mnt/cache", read=False, write=True, patience_s=0.5, connections=1),
        )
        assert result.trust == TrustSettings(
            keys=(parse_trusted(variables["TRTBUILD_TRUSTED_KEYS"]),),
            revoked=frozenset({parse_trusted(KEY).public_key}),
            signing_key=variables["TRTBUILD_SIGNING_KEY"],
            domain="pr-17",
            read_domains=("release", "pr-17"),
        )
        assert result.runners == {90: ("h100",), 89: ("self-hosted", "l4")}


def test_without_configuration_no_module_is_imported(home: Home) -> None:
    code = (
        "import sys, pathlib; from trtbuild.driver import configuration; before = set(sys.modules);"
        f"found = configuration.load({{'HOME': {str(home.root)!r}}}, pathlib.Path('.'));"
        "assert found.remotes == () and found.sha256 is None; print(*(set(sys.modules) - before))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.split() == []


@pytest.mark.parametrize("name", configuration.VARIABLES)
def test_an_empty_variable_counts_as_not_set_except_for_remotes_and_trusted_keys(home: Home, name: str) -> None:
    if name == "TRTBUILD_TRUSTED_KEYS":
        assert "every record would be trusted" in str(home.load_error(ALL_ENTRIES, TRTBUILD_TRUSTED_KEYS=" "))
    elif name == "TRTBUILD_REMOTES":
        assert home.load(ALL_ENTRIES, TRTBUILD_REMOTES="").remotes == ()
        assert home.load(ALL_ENTRIES, TRTBUILD_REMOTES="").trust == home.load(ALL_ENTRIES).trust
    else:
        assert home.load(ALL_ENTRIES, **{name: ""}) == home.load(ALL_ENTRIES)


def test_the_path_of_the_file_comes_from_the_variable_or_the_config_home(home: Home, tmp_path: Path) -> None:
    home.write("[cache]\nmax_size = '1B'\n")
    in_xdg_home = tmp_path / "xdg" / "trtbuild" / "config.toml"
    in_xdg_home.parent.mkdir(parents=True)
    in_xdg_home.write_text("[cache]\nmax_size = '2B'\n")
    in_variable = tmp_path / "chosen.toml"
    in_variable.write_text("[cache]\nmax_size = '3B'\n")
    for path in (in_xdg_home, in_variable):
        path.chmod(0o644)
    assert home.load().cache_max_size == 1
    assert home.load(XDG_CONFIG_HOME=str(tmp_path / "xdg")).cache_max_size == 2
    assert home.load(XDG_CONFIG_HOME="xdg").cache_max_size == 1  # the XDG specification ignores relative paths
    assert home.load(XDG_CONFIG_HOME=str(tmp_path / "xdg"), TRTBUILD_CONFIG=str(in_variable)).cache_max_size == 3
    assert home.load(TRTBUILD_CONFIG="~/.config/trtbuild/config.toml").cache_max_size == 1
    assert home.load(TRTBUILD_CONFIG="/dev/null") == Configuration(path="/dev/null")
    assert home.load(TRTBUILD_CONFIG="").cache_max_size == 1


def test_a_named_file_must_exist_and_the_default_file_need_not(home: Home, tmp_path: Path) -> None:
    assert home.load() == Configuration(path=str(home.file))
    error = home.load_error(TRTBUILD_CONFIG=str(tmp_path / "none.toml"))
    assert error.file == str(tmp_path / "none.toml")
    assert "does not exist" in error.text
    assert error.exit_code == 2


def test_a_project_cannot_configure_itself_by_being_the_home_directory(home: Home) -> None:
    home.write(ALL_ENTRIES)
    home.project = home.root
    error = home.load_error()
    assert "is inside the project" in error.text
    assert home.load(TRTBUILD_CONFIG=str(home.file)).remotes
    link = home.root.parent / "link"
    link.symlink_to(home.root)
    home.project = link
    home.load_error()


def test_a_default_file_that_cannot_be_read_is_an_error(home: Home) -> None:
    """The file may revoke trusted keys, so it must not be ignored."""
    home.file.parent.rmdir()
    home.file.parent.symlink_to(home.file.parent)  # a loop
    assert "cannot be read" in home.load_error().text
    home.file.parent.unlink()
    home.file.parent.write_text("a file, so there is nothing below it")
    assert home.load() == Configuration(path=str(home.file))


def test_no_file_of_a_project_is_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.toml", "trtbuild.toml", ".trtbuild/config.toml", ".config/trtbuild/config.toml", ".env"):
        path = home.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ALL_ENTRIES)
    monkeypatch.chdir(home.project)
    assert home.load(XDG_CONFIG_HOME=".config") == Configuration(path=str(home.file))


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("[cache]\nmax_sise = '1B'\n", 2, "'max_sise' is not known", "did you mean 'max_size'"),
        ("# x\n[remotes]\nname = 'a'\n", 2, "'remotes' is not known", "did you mean 'remote'"),
        ("[remote]\nname = 'a'\n", 1, "not a list of tables", "[[remote]]"),
        ("cache = 1\n", 1, "'cache' is not a table", "[cache]"),
        ("[cache]\n\nmax_size = 50\n", 3, "max_size is not a string", 'max_size = "…"'),
        ("[cache]\nmax_size = 'much'\n", 2, "'much' is not a size", "50GiB"),
        (
            "[[remote]]\nname = 'a'\nurl = 'file:///c'\n\n[[remote]]\nname='b'\nurls = 'x'\nurl='file:///d'\n",
            7,
            "'urls'",
            "url",
        ),
        ("[[remote]]\nname = 'a'\n", 1, "url of a remote is missing", "https"),
        ("[[remote]]\nurl = 'file:///c'\nname = 3\n", 3, "name of a remote is not a string", "team"),
        ("[[remote]]\nname = 'a'\nurl = 'file:///c'\npassword = 'x'\n", 4, "'password'", "~/.netrc"),
        ("[trust]\nsigning_key = 'x'\n", 2, "'signing_key'", "TRTBUILD_SIGNING_KEY"),
        ("[trust]\nkeys = 'ci:x'\n", 2, "keys is not a list", 'keys = ["…"]'),
        ("[trust]\nkeys = []\n", 2, "keys is not a list", "leave it out"),
        (f"[trust]\nkeys = [\n  '{KEY}',\n  'ci:short',\n]\n", 4, "32 bytes", "keygen"),
        ("[trust]\nkeys = [\n  3,\n]\n", 2, "a string or a table", "keygen"),
        ("[trust]\nread_domains = ['ci', 'a b']\n", 2, "'a b' is not a domain", "letters"),
        ("[trust]\nrevoked = ['nothing']\n", 2, "32 bytes", "keygen"),
        ("[trust]\nsigning_key_file = 'ci.key'\n", 2, "not an absolute path", "~/"),
        ("[matrix]\n\nsm89 = ['l4']\n", 3, "'sm89' is not known", "sm_89"),
        ("[matrix]\nsm_89 = []\n", 2, "sm_89 has no labels", "self-hosted"),
        ("[matrix]\nsm_89 = {label = 'l4'}\n", 2, "sm_89 has no labels", "self-hosted"),
        ("[matrix]\nsm_89 = ['l4', 4]\n", 2, "4 is not a label", "letters"),
        ("[matrix]\nsm_89 = '${{ secrets.KEY }}'\n", 2, "is not a label", "letters"),
        ("matrix = ['l4']\n", 1, "'matrix' is not a table", "[matrix]"),
        ("[cache\n", 1, "it is not valid TOML", "quotes"),
        ("[cache]\nmax_size = 50GiB\n", 2, "it is not valid TOML", "quotes"),
        ("[cache]\nmax_size = '1B'\nmax_size = '2B'\n", 3, "it is not valid TOML", "quotes"),
        ("a = '''\n\n", 2, "it is not valid TOML", "quotes"),
    ],
)
def test_an_error_in_the_file_names_file_and_line(home: Home, text: str, line: int, message: str, hint: str) -> None:
    error = home.load_error(text)
    assert (error.file, error.line) == (str(home.file), line)
    assert message in error.text
    assert hint in str(error.hint)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRTBUILD_CACHE_MAX_SIZE", "much", "'much' is not a size"),
        ("TRTBUILD_CACHE_MAX_SIZE", "9" * 400, "is not a size"),
        ("TRTBUILD_WORKERS_WAIT", "9" * 400 + "s", "is not a time to wait"),
        ("TRTBUILD_REMOTES", "https://cache.example", "has no name"),
        ("TRTBUILD_REMOTES", "=rw:https://cache.example", "has no name"),
        ("TRTBUILD_REMOTES", "team=https://cache.example", "has no mode"),
        ("TRTBUILD_REMOTES", "team=:https://cache.example", "has no mode"),
        ("TRTBUILD_REMOTES", "team=x:https://cache.example", "'x' is not a mode"),
        ("TRTBUILD_REMOTES", "team=rw:", "has no URL"),
        ("TRTBUILD_TRUSTED_KEYS", "ci", "is not a trusted key"),
        ("TRTBUILD_REVOKED_KEYS", "ci", "32 bytes"),
        ("TRTBUILD_DOMAIN", "local-x", "no domain"),
        ("TRTBUILD_READ_DOMAINS", "release,ci", "not a domain"),
        ("TRTBUILD_MATRIX", "sm_89", "has no labels"),
        ("TRTBUILD_MATRIX", "89=l4", "'89' is not known"),
        ("TRTBUILD_MATRIX", "sm_89=l4, sm_90=h100", "'' is not a label"),
        ("TRTBUILD_MATRIX", "sm_89=l4 sm_89=l40", "sm_89 is set twice"),
        ("TRTBUILD_MATRIX", '{"sm_89": ["l4"]}', "has no labels"),
    ],
)
def test_an_error_in_a_variable_names_the_variable(home: Home, name: str, value: str, message: str) -> None:
    error = home.load_error(**{name: value})
    assert error.text.startswith(f"{name}: ")
    assert message in error.text
    assert error.file is None


def test_all_problems_are_reported_at_once(home: Home) -> None:
    error = home.load_error("[cache]\nmax_size = 'x'\n[trust]\ndomain = '%'\nsize = 1\n", TRTBUILD_REMOTES="a")
    assert isinstance(error, ConfigurationErrors)
    assert {(problem.line, problem.text.split()[0]) for problem in error.problems} == {
        (2, "'x'"),
        (4, "'%'"),
        (5, "'size'"),
        (None, "TRTBUILD_REMOTES:"),
    }
    assert all(str(problem) in str(error) for problem in error.problems)


def test_only_one_key_signs(home: Home) -> None:
    error = home.load_error(TRTBUILD_SIGNING_KEY="x", TRTBUILD_SIGNING_KEY_FILE="/x")
    assert "only one signing key" in error.text
    result = home.load(ALL_ENTRIES, TRTBUILD_SIGNING_KEY="from the environment").trust
    assert (result.signing_key, result.signing_key_file) == ("from the environment", None)


def test_the_path_of_a_key_file_in_a_variable_is_relative_to_the_working_directory(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert home.load(TRTBUILD_SIGNING_KEY_FILE="ci.key").trust.signing_key_file == tmp_path / "ci.key"
    assert home.load(TRTBUILD_SIGNING_KEY_FILE="~/ci.key").trust.signing_key_file == home.root / "ci.key"


def test_a_trusted_key_may_be_a_table(home: Home) -> None:
    encoded = KEY.partition(":")[2]
    for expires in ("2030-01-31", "'2030-01-31'"):
        table = f"{{name = 'ci', key = '{encoded}', expires = {expires}, domains = ['ci', 'release']}}"
        result = home.load(f"[trust]\nkeys = [{table}, '{OTHER}']\n").trust.keys
        assert result == (parse_trusted(f"{KEY};expires=2030-01-31;domains=ci,release"), parse_trusted(OTHER))
    table = f"[[trust.keys]]\nname = 'ci'\nkey = '{encoded}'\n"
    assert home.load(table).trust.keys == (parse_trusted(KEY),)
    for bad in (f"{{name = 'ci', key = '{encoded}', expired = 2030-01-31}}", "{name = 'ci'}", "{key = 'x'}"):
        home.load_error(f"[trust]\nkeys = [{bad}]\n")
    home.load_error(f"[trust]\nkeys = [{{name = 'ci', key = '{encoded}', domains = 'ci'}}]\n")
    home.load_error(f"[trust]\nkeys = [{{name = 'ci', key = '{encoded}', expires = 2030}}]\n")


def test_no_secret_is_in_a_message_or_repr(home: Home) -> None:
    secret = "hunter2"
    urls = [
        f"https://user:{secret}@cache.example",
        f"user:{secret}@cache.example",
        f"ftp://user:{secret}@cache.example",
        f"https://user:{secret}@:x",
        f"https://user:a/{secret}@host:99999999",
        f"https://[::{secret}@x",
        f"s3://user:{secret}@bucket",
        f"https://host/?sig={secret}",
    ]
    for url in urls:
        for word in (url, f"team={url}", f"team=q:{url}", f"team=rw:{url}"):
            if word == f"team=rw:{urls[0]}":  # the only valid value
                assert secret not in repr(home.load(TRTBUILD_REMOTES=word))
                continue
            error = home.load_error(TRTBUILD_REMOTES=word)
            assert secret not in f"{error!r}{error}{error.__cause__}{error.__context__}", word
    assert secret not in repr(home.load(TRTBUILD_SIGNING_KEY=secret))
    private = Signer.new("ci").text()
    error = home.load_error(TRTBUILD_TRUSTED_KEYS=private)
    assert private.rpartition(":")[2] not in str(error)


def test_without_a_home_directory_there_is_no_default_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert configuration.load({}, tmp_path) == Configuration()
