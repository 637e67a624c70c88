"""What a mediator asks of its log before it serves it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from eventstore.log.codec import encode
from eventstore.log.host_leases import LEASE_S_MAX, NODE_PROTOCOL, HostLease, node_protocol
from eventstore.log.log_format import FORMAT, FORMAT_NAME
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from eventstore.stores.host_lease_file import HostLeaseFile
from eventstore.stores.open_log import open_host_leases, open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server import log_check
from http_edge.server.exits import Exit, Stop
from http_edge.server.hosts import host_options
from http_edge.server.log_check import check_log, note_start, only_mediator, why_unserved
from http_edge.settings.settings import Archive, Postgres, Settings
from tests.database_server import DatabaseServer, database_directory
from tests.full_disk import files_up_to
from tests.log.raw_sql import run_sql


def begin(settings: Settings) -> dict[int, str]:
    """Check the log and note the start, as a mediator does that goes on to serve."""
    away = check_log(settings)
    note_start(settings, away)
    return away


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a mediator that served a log with a row, and stopped."""
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path)
    begin(made)
    with closing(open_log(made.log_dsn)) as log:
        sealed = seal(
            [], [], partition="shard-0", epoch=1, at_ms=1, window_ms=1, nonces=b"", previous=GENESIS
        )
        log.append([encode(partition_stream("shard-0"), 1, sealed)], [sealed])
    return made


def test_the_same_log_is_served_again(settings: Settings) -> None:
    known = (settings.data_dir / "log-id").read_text()
    assert begin(settings) == {}
    assert (settings.data_dir / "log-id").read_text() == known


def test_a_full_disk_leaves_the_name_of_the_log_that_was_served(settings: Settings) -> None:
    known = (settings.data_dir / "log-id").read_text()
    with closing(open_log(settings.log_dsn)), files_up_to(0):
        assert begin(settings) == {}
    assert (settings.data_dir / "log-id").read_text() == known


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_an_empty_log_beside_used_keys_is_refused_until_the_operator_says_otherwise(
    settings: Settings, how: str
) -> None:
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (settings.data_dir / name).unlink(missing_ok=True)
    if how == "emptied":
        (settings.data_dir / "log.db").touch()
    for _ in range(2):
        with pytest.raises(Stop, match="The log is empty") as refused:
            check_log(settings)
        assert refused.value.exit_code == Exit.UNSAFE
        assert "poste restore" in refused.value.remedy
    (settings.data_dir / "log-id").unlink()
    begin(settings)


@pytest.mark.parametrize(
    ("changed", "option"),
    [({"shards": 7}, "--shards 16"), ({"did": "did:web:other.example"}, "--did")],
)
def test_what_is_fixed_for_the_life_of_a_log_is_changed_by_no_start(
    settings: Settings, changed: dict[str, object], option: str
) -> None:
    made = {"did": settings.did, "data_dir": settings.data_dir, **changed}
    with pytest.raises(Stop, match="was created with") as refused:
        check_log(Settings.model_validate(made))
    assert refused.value.exit_code == Exit.USAGE
    assert option in refused.value.remedy


@pytest.mark.parametrize("keys", ["none", "another's"])
def test_a_log_is_served_with_the_keys_of_its_mediator_alone(settings: Settings, keys: str) -> None:
    settings.keys_path.unlink()
    if keys == "another's":
        load_or_create(settings.keys_path)
    with pytest.raises(Stop, match="log belongs to the") as refused:
        check_log(settings)
    assert refused.value.exit_code == Exit.UNSAFE
    assert settings.keys_path.exists() == (keys == "another's")


def test_keys_that_were_made_beforehand_are_no_used_keys(tmp_path: Path) -> None:
    settings = Settings(did="did:web:mediator.example", data_dir=tmp_path / "served")
    settings.data_dir.mkdir()
    begin(settings)
    other = Settings(did="did:web:mediator.example", data_dir=tmp_path / "new")
    other.data_dir.mkdir()
    other.keys_path.write_bytes(settings.keys_path.read_bytes())
    other.keys_path.chmod(0o600)
    check_log(other)


def test_a_log_of_a_later_release_is_refused_with_what_to_do(settings: Settings) -> None:
    with closing(open_log(settings.log_dsn)) as log:
        log.mark(FORMAT_NAME, str(FORMAT + 1))
    with pytest.raises(Stop, match="a later release has written to this log") as refused:
        check_log(settings)
    assert refused.value.exit_code == Exit.UNSAFE
    assert "Use that release, or restore a backup" in refused.value.remedy


def test_a_damaged_log_ends_a_start_with_how_to_restore_it(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"damaged " * 1024)
    with pytest.raises(Stop) as stop:
        check_log(Settings(data_dir=tmp_path))
    assert (stop.value.exit_code, "is damaged" in stop.value.message) == (Exit.UNSAFE, True)
    assert "restore.md" in stop.value.remedy


def test_a_node_does_not_start_beside_nodes_of_another_protocol(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_check, "ENDING_S_MAX", -LEASE_S_MAX)
    node = settings.on_node("new", "127.0.0.1")
    lease = HostLease("host-old-0", "old", "first", "127.0.0.1", 1, b"", protocol=NODE_PROTOCOL)
    with closing(open_host_leases(settings.log_dsn)) as leases:
        leases.take(lease, LEASE_S_MAX)
        check_log(node)
        leases.take(msgspec.structs.replace(lease, protocol=NODE_PROTOCOL + 1), LEASE_S_MAX)
        with pytest.raises(Stop, match="cannot run beside this one are running: old") as refused:
            check_log(node)
        assert refused.value.exit_code == Exit.USAGE
        assert "Stop them all" in refused.value.remedy


@pytest.mark.postgres
def test_nodes_with_one_placer_for_all_databases_are_known_by_the_hosts_of_any_of_them(
    tmp_path: Path, two_postgres_urls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_check, "ENDING_S_MAX", -LEASE_S_MAX)
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=two_postgres_urls)
    node = made.on_node("new", "127.0.0.1")
    check_log(node)
    own = {host_options(node, index).protocol for index in range(2 * node.hosts)}
    assert own == {node_protocol(databases=2)} != {NODE_PROTOCOL}
    for number, dsn in enumerate(node.log_dsns):
        lease = HostLease(f"host-old-{number}-0", "old", "first", "127.0.0.1", 1, b"")
        with closing(open_host_leases(dsn)) as leases:
            leases.take(msgspec.structs.replace(lease, protocol=NODE_PROTOCOL), LEASE_S_MAX)
            with pytest.raises(Stop, match="cannot run beside this one are running: old"):
                check_log(node)
            leases.take(msgspec.structs.replace(lease, protocol=NODE_PROTOCOL + 1), LEASE_S_MAX)
            check_log(node)


@pytest.mark.postgres
def test_what_a_start_without_the_first_database_could_not_note_is_noted_when_it_is_back(
    tmp_path: Path, two_postgres_urls: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=two_postgres_urls)
    begin(made.on_node("first", "127.0.0.1"))
    (tmp_path / "log-id").unlink()
    node = made.model_copy(update={"public_url": "https://new.example", "placement": "dedicated"})
    node = node.on_node("second", "127.0.0.1")
    nowhere = f"postgresql://poste@db.invalid/poste {node.log_dsns[1]}"
    assert set(begin(node.model_copy(update={"log": nowhere}))) == {0}
    assert caplog.messages == []
    assert why_unserved(node, 0) is None
    said = " ".join(caplog.messages)
    assert "public_url differs" in said
    assert "settings differ from those with which the last node started" in said
    assert "placement" in said
    assert (tmp_path / "log-id").exists()


@pytest.mark.postgres
def test_no_mediator_starts_on_the_database_of_another_unless_both_are_nodes(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=postgres_url)
    node = alone.on_node("new", "127.0.0.1")
    monkeypatch.setattr(log_check, "ENDING_S_MAX", -LEASE_S_MAX)
    for each in (alone, node):
        check_log(each)
    for running, refused in (("", [alone, node]), ("old", [alone])):
        lease = HostLease("host-0", running, "first", "127.0.0.1", 1, b"", protocol=NODE_PROTOCOL)
        with closing(open_host_leases(postgres_url)) as leases:
            leases.take(lease, LEASE_S_MAX)
            for each in (alone, node):
                with pytest.raises(Stop) if each in refused else contextlib.nullcontext() as stop:
                    check_log(each)
                if stop is not None:
                    assert "Another mediator is running on this log" in str(stop.value)
                    assert stop.value.exit_code == Exit.BUSY
            # As the lease of a lost host looks when the clock of the database was set back.
            run_sql(postgres_url, "UPDATE host_leases SET ends = ends + 3600")
            check_log(alone)
            leases.leave(lease)


def test_only_the_hosts_of_a_node_name_one_beside_which_others_start(settings: Settings) -> None:
    assert host_options(settings, 0).node == ""
    assert host_options(settings.on_node("new", "127.0.0.1"), 0).node == "new"


def test_a_node_with_a_name_needs_an_address(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="without node_address no other node") as stop:
        check_log(Settings(data_dir=tmp_path, node="node-1"))
    assert stop.value.exit_code == Exit.USAGE
    assert "Set node_address" in stop.value.remedy


def test_rows_that_shall_leave_postgresql_need_a_place_to_go(tmp_path: Path) -> None:
    log = "postgresql://127.0.0.1:1/none"
    settings = Settings(data_dir=tmp_path, log=log, archive=Archive(enabled=True))
    with pytest.raises(Stop, match=r"without export\.to no row leaves") as stop:
        check_log(settings)
    assert stop.value.exit_code == Exit.USAGE
    assert "Set export.to" in stop.value.remedy


@pytest.mark.postgres
def test_a_database_that_loses_commits_is_served_only_if_the_operator_says_so(
    tmp_path: Path, postgres_url: str
) -> None:
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    settings = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=postgres_url)
    with pytest.raises(Stop, match="synchronous_commit=off") as stop:
        check_log(settings)
    assert stop.value.exit_code == Exit.UNSAFE
    check_log(settings.model_copy(update={"postgres": Postgres(unsafe_ok=True)}))


@pytest.mark.postgres
def test_of_two_mediators_that_start_at_the_same_time_one_is_refused(
    tmp_path: Path, postgres_url: str
) -> None:
    alone = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=postgres_url)
    node = alone.on_node("new", "127.0.0.1")
    with only_mediator(node), only_mediator(node), only_mediator(alone):
        with pytest.raises(Stop, match="Another mediator is running") as stop, only_mediator(alone):
            pytest.fail("both start")
        assert stop.value.exit_code == Exit.BUSY
    with only_mediator(alone):
        pass


def test_the_lease_of_a_killed_node_delays_a_start_and_does_not_prevent_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = HostLease("host-old-0", "old", "first", "127.0.0.1", 1, b"", protocol=NODE_PROTOCOL + 1)
    with closing(open_host_leases(settings.log_dsn)) as leases:
        leases.take(lease, LEASE_S_MAX)
        monkeypatch.setattr(time, "sleep", lambda _: leases.leave(lease))
        check_log(settings.on_node("new", "127.0.0.1"))
        assert leases.living() == []


def test_a_host_that_renews_the_longest_lease_during_a_start_is_not_overlooked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = HostLease("host-old-0", "old", "first", "127.0.0.1", 1, b"", protocol=NODE_PROTOCOL + 1)

    class Renewed(HostLeaseFile):
        def living(self) -> Sequence[HostLease]:
            self.renew(lease, LEASE_S_MAX)
            return super().living()

    path = settings.data_dir / "leases"
    monkeypatch.setattr(log_check, "host_leases", lambda *_: Renewed(path))
    monkeypatch.setattr(log_check, "ENDING_S_MAX", -LEASE_S_MAX)
    with pytest.raises(Stop, match="cannot run beside this one are running: old"):
        check_log(settings.on_node("new", "127.0.0.1"))


def test_an_address_by_which_clients_do_not_know_the_mediator_is_warned_of_once(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    moved = settings.model_copy(update={"public_url": "https://elsewhere.example"})
    for each, warned in ((settings, 0), (moved, 1), (moved, 1), (settings, 2)):
        begin(each)
        found = [one.message.startswith("public_url differs") for one in caplog.records]
        assert sum(found) == warned
    warnings = [one for one in caplog.records if "former" in one.__dict__]
    assert [one.__dict__["former"] for one in warnings] == [settings.url, moved.url]
    assert all("only as long as the former one leads here" in one.message for one in warnings)


@pytest.mark.parametrize(
    ("listen", "public_url", "is_warned"),
    [
        ("0.0.0.0:8080", None, True),
        ("[::]:8080", None, True),
        ("127.0.0.1:8080", None, False),
        ("0.0.0.0:8080", "https://mediator.example", False),
    ],
)
def test_an_address_that_only_this_machine_knows_is_warned_of_where_others_may_call(
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    listen: str,
    public_url: str | None,
    is_warned: bool,
) -> None:
    begin(settings.model_copy(update={"listen": listen, "public_url": public_url}))
    found = [one.message.startswith("public_url is not set") for one in caplog.records]
    assert any(found) == is_warned


@pytest.mark.parametrize("did", [None, "did:web:mediator.example"])
def test_the_warning_of_an_unset_address_is_about_the_kept_did_only_if_that_names_localhost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, did: str | None
) -> None:
    begin(Settings(did=did, data_dir=tmp_path, listen="0.0.0.0:8080"))
    (said,) = caplog.messages
    assert ("a log keeps its DID for ever" in said) == (did is None)
    assert ("DIDs of DIDComm v2 name localhost" in said) == (did is not None)


def test_a_node_with_other_rules_for_what_is_removed_admitted_or_placed_names_them(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    node = settings.on_node("one", "127.0.0.1")
    strict = node.model_copy(
        update={
            "placement": "dedicated",
            "dedicated_dids": ["did:example:someone"],
            "limits": settings.limits.model_copy(update={"dedicate_above_commands_per_s": 40}),
            "protocol": settings.protocol.model_copy(update={"registration": "closed"}),
            "didcomm": settings.didcomm.model_copy(update={"registration": "closed"}),
            "archive": settings.archive.model_copy(update={"keep_s": 60}),
            "retention": settings.retention.model_copy(update={"messages_s": 60}),
        }
    )
    named = "placement, dedicated_dids, limits.dedicate_above_commands_per_s"
    named += ", protocol.registration, didcomm.registration, archive.keep_s, retention.messages_s"
    for each, warned in ((node, 0), (node, 0), (strict, 1), (strict, 1), (node, 2)):
        begin(each)
        found = [one for one in caplog.messages if one.startswith("settings differ")]
        assert len(found) == warned
        assert all(one.endswith(f": {named}") for one in found)
        with closing(open_log(settings.log_dsn)) as log:
            assert "did:example:someone" not in str(log.settings())
    begin(strict.model_copy(update={"node": None, "node_address": None}))
    assert len([one for one in caplog.messages if one.startswith("settings differ")]) == warned


@pytest.fixture(scope="module")
def strict_server() -> Iterator[DatabaseServer]:
    """A server that asks the role ``asked`` for a password, and has no TLS."""
    with database_directory() as directory:
        server = DatabaseServer.new(directory / "strict")
        hba = directory / "strict" / "pg_hba.conf"
        hba.write_text("host all asked all scram-sha-256\n" + hba.read_text())
        server.start()
        for statement in (
            "CREATE ROLE asked LOGIN PASSWORD 'right'",
            "CREATE ROLE full_role LOGIN CONNECTION LIMIT 0",
            "CREATE ROLE no_rights LOGIN",
            "CREATE DATABASE second",
            "CREATE DATABASE closed",
            "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
            "CREATE DATABASE in_part",
        ):
            server.run(statement)
        with psycopg.connect(f"{server.url.removesuffix('postgres')}in_part") as connection:
            connection.execute("CREATE TABLE archived_states (id int PRIMARY KEY)")
        yield server


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("second", "is_away"),
    [
        ("asked:wrong@{}/second", False),
        ("asked@{}/second", False),
        ("asked:right@{}/second?channel_binding=require", False),
        ("asked:right@{}/second?require_auth=md5", False),
        ("postgres@{}/second?target_session_attrs=wrong", False),
        ("unknown@{}/second", False),
        ("postgres@{}/none", False),
        ("no_rights@{}/closed", False),
        ("no_rights@{}/second", False),
        ("postgres@{}/second?sslmode=require", False),
        ("postgres@{}/second?sslmode=wrong", False),
        ("postgres@{}/in_part", False),
        ("full_role@{}/second", True),
        ("postgres@127.0.0.1:1/second", True),
        ("asked:wrong@{},127.0.0.1:1/second", True),
        ("asked:wrong@{0},{0}/second", False),
        ("postgres@{}/second?options=-cdefault_transaction_read_only%3Don", True),
    ],
)
def test_only_a_database_that_cannot_be_reached_or_cannot_serve_now_is_away_at_a_start(
    tmp_path_factory: pytest.TempPathFactory,
    strict_server: DatabaseServer,
    second: str,
    *,
    is_away: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "keys-of-strict-server"
    folder.mkdir(exist_ok=True)
    place = f"127.0.0.1:{strict_server.port}"
    first, right = (f"postgresql://postgres@{place}/{name}" for name in ("postgres", "second"))
    node = Settings(did="did:web:mediator.example", data_dir=folder, log=f"{first} {right}")
    check_log(node.on_node("one", "127.0.0.1"))
    log = f"{first} postgresql://{second.format(place)}"
    other = node.model_copy(update={"log": log}).on_node("one", "127.0.0.1")
    if is_away:
        assert list(check_log(other)) == [1]
        return
    with pytest.raises(Stop) as stop:
        check_log(other)
    assert stop.value.exit_code == Exit.UNREACHABLE
    assert "The event log cannot be opened: PostgreSQL: " in stop.value.message
