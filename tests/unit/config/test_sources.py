"""Sources of settings: their order, and that nothing unknown or unfit passes unnamed."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from http_edge.settings import sources
from http_edge.settings.reference import every_setting
from http_edge.settings.settings import Settings
from http_edge.settings.sources import SettingRefused, load_settings, shown

NONE: Mapping[str, str] = {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "poste.toml"


def test_each_source_overrules_the_ones_before_it(file: Path) -> None:
    file.write_text("hosts = 2\nedges = 2\nshards = 32\n[limits]\nqueue_messages_max = 5\n")
    environ = {"POSTE_EDGES": "3", "POSTE_SHARDS": "64", "POSTE_LIMITS__CONTRACTS_MAX": "1_000"}
    loaded = load_settings({"shards": "128"}, environ, file)
    settings = loaded.settings
    assert (settings.hosts, settings.edges, settings.shards) == (2, 3, 128)
    assert (settings.limits.queue_messages_max, settings.limits.contracts_max) == (5, 1_000)
    assert {name: source for name, source in loaded.sources.items() if source != "default"} == {
        "hosts": str(file),
        "edges": "POSTE_EDGES",
        "shards": "command line",
        "limits.queue_messages_max": str(file),
        "limits.contracts_max": "POSTE_LIMITS__CONTRACTS_MAX",
    }


def test_without_sources_the_defaults_hold() -> None:
    settings = load_settings(NONE, NONE).settings
    assert settings.model_copy(update={"data_dir": Settings().data_dir}) == Settings()


def test_the_environment_may_name_the_file(file: Path) -> None:
    file.write_text("hosts = 2\n")
    assert load_settings(NONE, {"POSTE_CONFIG": str(file)}).settings.hosts == 2


def test_a_relative_data_directory_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"data_dir": "here"}, NONE).settings
    assert settings.data_dir == tmp_path / "here"
    assert settings.log_dsn == f"sqlite://{quote(str(tmp_path))}/here/log.db"


@pytest.mark.parametrize("name", ["keys_file", "operators.token_file", "push.fcm_credentials_file"])
def test_a_relative_file_becomes_absolute_in_every_section(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({name: "here"}, NONE).settings
    assert shown(settings)[name] == str(tmp_path / "here")


@pytest.mark.parametrize("name", ["data_dir", "keys_file", "push.fcm_credentials_file"])
def test_a_path_from_an_unknown_home_directory_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        load_settings({name: "~no-such-user/here"}, NONE)
    assert (refused.value.name, refused.value.source) == (name, "command line")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hosts", "4", 4),
        ("limits.queue_bytes_max", "70_000_000", 70_000_000),
        ("limits.keepalive_s", "0.5", 0.5),
        ("limits.keepalive_s", "5", 5),
        ("did_web.enabled", "ON", True),
        ("did_web.enabled", "0", False),
        ("public_url", "", None),
        ("log_level", "debug", "debug"),
        ("did_web.allowed_hosts", "a.example, b.example:8443,", ("a.example", "b.example:8443")),
        ("did_web.allowed_hosts", "", ()),
    ],
)
def test_texts_of_environment_and_flags_become_values_alike(
    name: str, text: str, value: object
) -> None:
    for loaded in (
        load_settings({name: text}, NONE),
        load_settings(NONE, {every_setting()[name].variable: text}),
    ):
        section, _, field = name.rpartition(".")
        holder = getattr(loaded.settings, section) if section else loaded.settings
        assert getattr(holder, field) == value


@pytest.mark.parametrize(
    ("toml", "name", "expected"),
    [
        ('hosts = "1"', "hosts", "a whole number from 1 to 256"),
        ("hosts = true", "hosts", "a whole number from 1 to 256"),
        ("hosts = 1979-05-27", "hosts", "a whole number from 1 to 256"),
        ("hosts = 0", "hosts", "a whole number from 1 to 256"),
        ("HOSTS = 1", "HOSTS", "a known setting"),
        ("host = 1", "host", "a known setting, perhaps hosts"),
        ("limits = 1", "limits", "a table [limits]"),
        ("[limits]\nkeepalive_s = nan", "limits.keepalive_s", "a number from 0.01 to 3_600"),
        ("[limits]\nkeep = 1", "limits.keep", "a known setting"),
        ("[limits.more]\nkeep = 1", "limits.more", "a known setting"),
        ('placement = "both"', "placement", "sharded or dedicated"),
        ('did = "mediator"', "did", "a DID, for example did:web:mediator.example"),
        (
            'log = "mysql://h"',
            "log",
            "sqlite:///absolute/path.db or postgresql://user@host/database",
        ),
        ('log = "postgres://h/a postgres://h/a"', "log", "no database twice"),
        ('data_dir = ""', "data_dir", "the path of a directory"),
        ('[export]\nto = "exports"', "export.to", "an absolute path or a URI"),
        ('[rates]\ntrusted_proxies = ["10.0.0.1/8"]', "rates.trusted_proxies", "a network"),
        ('public_url = "https://u@h"', "public_url", "an http or https URL without user"),
        (
            '[protocol]\nallowed_dids = ["did:web:a"]',
            "protocol.allowed_dids",
            "none, or protocol.registration allow_list with it",
        ),
        (
            "[limits]\npublic_page_size_max = 9",
            "limits.public_page_size_max",
            "at least limits.page_size_default",
        ),
        ("hosts = ", "the file", "readable TOML"),
        ("hosts = " + "[" * 100_000, "the file", "readable TOML"),
        (
            "[protocol]\nallowed_dids = " + "[" * 300 + "]" * 300,
            "protocol.allowed_dids",
            "a list, written with commas, each a DID",
        ),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(
    file: Path, toml: str, name: str, expected: str
) -> None:
    file.write_text(toml)
    with pytest.raises(SettingRefused) as refused:
        load_settings(NONE, NONE, file)
    assert (refused.value.name, refused.value.source) == (name, str(file))
    assert expected in refused.value.expected


@pytest.mark.parametrize(
    "name", [name for name, one in every_setting().items() if one.kind.get("format") == "path"]
)
def test_a_uri_is_not_taken_for_a_path_of_this_machine(name: str) -> None:
    for uri in ("s3://bucket/folder", "file:///folder"):
        with pytest.raises(SettingRefused) as refused:
            load_settings({name: uri}, NONE)
        assert (refused.value.name, refused.value.source) == (name, "command line")
        assert refused.value.expected == "a path on this machine, not a URI"


@pytest.mark.parametrize(
    ("name", "value"), [("push.webhook_key_file", "/etc/poste/key"), ("node", "node-1")]
)
def test_commands_run_in_a_container_whose_mediator_has_more_settings_than_they(
    name: str, value: str
) -> None:
    """The other one, push.webhook_url or node_address, is on the command line of the mediator."""
    loaded = load_settings(NONE, {every_setting()[name].variable: value})
    assert loaded.sources[name] == every_setting()[name].variable


def test_a_file_of_an_editor_on_windows_is_read(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfhosts = 2\r\n[limits]\r\nqueue_messages_max = 5\r\n")
    settings = load_settings(NONE, NONE, file).settings
    assert (settings.hosts, settings.limits.queue_messages_max) == (2, 5)


def test_a_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(SettingRefused, match="No such file"):
        load_settings(NONE, NONE, file)


@pytest.mark.parametrize(
    ("environ", "name", "source", "expected"),
    [
        ({"POSTE_HOSTS": "many"}, "hosts", "POSTE_HOSTS", "a whole number"),
        ({"POSTE_HOSTS": "true"}, "hosts", "POSTE_HOSTS", "a whole number"),
        ({"POSTE_LIMITS": '{"contracts_max": 7}'}, "POSTE_LIMITS", "the environment", "known"),
        ({"POSTE_LISTEM": "x"}, "POSTE_LISTEM", "the environment", "perhaps POSTE_LISTEN"),
        ({"POSTE_DID_WEB__ENABLED": "maybe"}, "did_web.enabled", "POSTE_DID_WEB__ENABLED", "true"),
        ({"POSTE_HOSTS": ""}, "hosts", "POSTE_HOSTS", "a whole number"),
        ({"POSTE_DATA_DIR": ""}, "data_dir", "POSTE_DATA_DIR", "the path of a directory"),
        (
            {"POSTE_DID_WEB__CACHE_ENTRIES_MAX": "2"},
            "did_web.cache_entries_max",
            "POSTE_DID_WEB__CACHE_ENTRIES_MAX",
            "a whole number from 3 ",
        ),
    ],
)
def test_a_variable_with_a_mistake_is_refused_by_name(
    environ: dict[str, str], name: str, source: str, expected: str
) -> None:
    with pytest.raises(SettingRefused) as refused:
        load_settings(NONE, environ)
    assert (refused.value.name, refused.value.source) == (name, source)
    assert expected in refused.value.expected


def test_a_file_of_settings_may_be_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"hosts = 2\n[limits]\ncontracts_max = 7\n")
    os.close(writing)
    try:
        settings = load_settings(NONE, NONE, Path(f"/dev/fd/{reading}")).settings
    finally:
        os.close(reading)
    assert (settings.hosts, settings.limits.contracts_max) == (2, 7)


@pytest.mark.parametrize("named", ["", "."])
def test_a_directory_is_no_file_of_settings(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingRefused, match="readable TOML"):
        load_settings(NONE, NONE, tmp_path / named)
    with pytest.raises(SettingRefused, match="readable TOML"):
        load_settings(NONE, NONE, Path(named))  # as of --config "$NAME" without a NAME
    if named:
        with pytest.raises(SettingRefused, match="readable TOML"):
            load_settings(NONE, {"POSTE_CONFIG": named})


def test_an_empty_variable_names_no_file_of_settings() -> None:
    assert load_settings(NONE, {"POSTE_CONFIG": ""}).settings.hosts == 1


NO_UTF_8 = b"/srv/\xff".decode("utf-8", "surrogateescape")
"""As Python gives the bytes of an argument or a variable that are not UTF-8."""


@pytest.mark.parametrize("name", ["data_dir", "hosts", "log", "did_web.allowed_hosts"])
def test_bytes_that_are_not_utf_8_are_refused_by_name(name: str) -> None:
    for flags, environ in (
        ({name: NO_UTF_8}, {}),
        ({}, {every_setting()[name].variable: NO_UTF_8}),
    ):
        with pytest.raises(SettingRefused) as refused:
            load_settings(flags, environ)
        assert refused.value.name == name


@pytest.mark.parametrize("name", ["data_dir", "keys_file", "export.to", "log", "push.text"])
def test_a_text_with_a_nul_which_no_path_can_have_is_refused_by_name(name: str, file: Path) -> None:
    start = "sqlite:///" if name == "log" else "/"
    section, _, field = name.rpartition(".")
    file.write_text(f'{f"[{section}]" if section else ""}\n{field} = "{start}a\\u0000b"\n')
    with pytest.raises(SettingRefused) as refused:
        load_settings(NONE, NONE, file)
    assert refused.value.name == name


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings had other names in earlier releases, one of them in another section."""
    names = {"contacts.max": "limits.contracts_max", "workers": "hosts"}
    monkeypatch.setattr(sources, "former_names", lambda: names)


@pytest.mark.usefixtures("renamed")
def test_a_renamed_setting_is_still_read_from_every_source_and_says_so(file: Path) -> None:
    file.write_text("workers = 2\n[contacts]\nmax = 7\n")
    for loaded, label in (
        (load_settings(NONE, NONE, file), str(file)),
        (load_settings(NONE, {"POSTE_WORKERS": "2", "POSTE_CONTACTS__MAX": "7"}), "POSTE_"),
        (load_settings({"workers": "2", "contacts.max": "7"}, NONE), "command line"),
    ):
        assert (loaded.settings.hosts, loaded.settings.limits.contracts_max) == (2, 7)
        assert loaded.sources["limits.contracts_max"].startswith(label)
        assert sorted(note.split(" from ")[0] for note in loaded.notes) == [
            "contacts.max",
            "workers",
        ]
        assert any("is called limits.contracts_max now" in note for note in loaded.notes)


@pytest.mark.usefixtures("renamed")
def test_a_later_source_overrules_by_either_name(file: Path) -> None:
    file.write_text("hosts = 2\n")
    loaded = load_settings(NONE, {"POSTE_WORKERS": "3"}, file)
    assert (loaded.settings.hosts, loaded.sources["hosts"]) == (3, "POSTE_WORKERS")


@pytest.mark.usefixtures("renamed")
def test_a_setting_by_both_its_names_in_one_source_is_refused(file: Path) -> None:
    file.write_text("hosts = 2\nworkers = 3\n")
    with pytest.raises(SettingRefused, match="expected hosts alone"):
        load_settings(NONE, NONE, file)


def test_variables_that_kubernetes_makes_for_a_service_named_poste_are_not_settings() -> None:
    load_settings(
        NONE,
        {
            "POSTE_SERVICE_HOST": "10.0.0.1",
            "POSTE_SERVICE_PORT": "8080",
            "POSTE_SERVICE_PORT_HTTP": "8080",
            "POSTE_PORT": "tcp://10.0.0.1:8080",
            "POSTE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "POSTE_PORT_8080_TCP_ADDR": "10.0.0.1",
        },
    )


def test_service_links_hide_no_setting() -> None:
    variables = {setting.variable for setting in every_setting().values()}
    assert not {name for name in variables if name.startswith(("POSTE_SERVICE", "POSTE_PORT"))}


def test_settings_that_contradict_each_other_are_refused_where_they_were_set() -> None:
    with pytest.raises(SettingRefused) as low:
        load_settings({"limits.page_size_max": "5"}, NONE)
    assert str(low.value) == (
        "limits.page_size_max from command line: expected at least limits.page_size_default"
    )
    with pytest.raises(SettingRefused) as high:
        load_settings(NONE, {"POSTE_HOSTS": "20"})
    assert str(high.value) == "hosts from POSTE_HOSTS: expected at most shards"


def test_settings_that_exclude_each_other_are_refused() -> None:
    both = {"push.webhook_url": "https://push.example", "push.fcm_credentials_file": "account.json"}
    with pytest.raises(SettingRefused) as refused:
        load_settings(both, NONE)
    assert str(refused.value) == (
        "push.webhook_url from command line: expected it or push.fcm_credentials_file, but not both"
    )


def test_each_database_of_a_cluster_has_room_for_a_dedicated_identity_or_none_has() -> None:
    two = {"log": "postgresql://a postgresql://b"}
    cluster = two | {"node_address": "10.0.0.1"}
    with pytest.raises(SettingRefused) as refused:
        load_settings(cluster | {"limits.dedicated_max": "1"}, NONE)
    assert str(refused.value) == (
        "limits.dedicated_max from command line:"
        " expected 0, or 2 at least, one for each database of the log"
    )
    for right in ("0", "2", "3"):
        load_settings(cluster | {"limits.dedicated_max": right}, NONE)
    load_settings(two | {"limits.dedicated_max": "1"}, NONE)  # no placer dedicates any


def test_nodes_that_export_tolerate_no_clocks_by_which_the_export_is_complete_too_early() -> None:
    cluster = {"log": "postgresql://a", "node_address": "10.0.0.1"}
    exporting = cluster | {"export.to": "s3://bucket/log"}
    off, settled = "limits.clock_off_s_max", "export.settled_s"
    why = f"with 2 times postgres.connect_s_max and 2 times {off}"
    for given, refusal in (
        ({off: "3600"}, f"{settled} from default: expected at least 7215 {why}"),
        ({off: "23"}, f"{settled} from default: expected at least 61 {why}"),
        (
            {off: "6", settled: "26"},
            f"{settled} from command line: expected at least 27 {why}",
        ),
        ({off: "0"}, f"{off} from command line: expected more than 0 in a cluster with export.to"),
    ):
        with pytest.raises(SettingRefused) as refused:
            load_settings(exporting | given, NONE)
        assert str(refused.value) == refusal
        load_settings(cluster | given, NONE)
        # Alone, the exporter and the hosts have one clock.
        load_settings(given | {"log": "postgresql://a", "export.to": "s3://bucket/log"}, NONE)
    for right in ({}, {off: "22.5"}, {settled: "25"}):
        load_settings(exporting | right, NONE)


def test_a_password_is_never_shown() -> None:
    dsn = "postgresql://poste:hun@ter2@db/poste?sslmode=require&password=hunter2&x=1"
    settings = load_settings({"log": dsn}, NONE).settings
    assert settings.log_dsn == dsn
    assert (
        shown(settings)["log"] == "postgresql://poste:***@db/poste?sslmode=require&password=***&x=1"
    )
    log = "postgresql://poste@db/poste?password=a&hunter2&b&sslmode=require"
    settings = load_settings({"log": log}, NONE).settings
    assert shown(settings)["log"] == "postgresql://poste@db/poste?password=***&sslmode=require"


def test_every_value_in_force_is_shown() -> None:
    values = shown(Settings())
    assert values.keys() == every_setting().keys()
    assert values["did"] == "did:web:127.0.0.1%3A8080"
    assert values["limits.batch_items_max"] == Settings().limits.batch_items_max
