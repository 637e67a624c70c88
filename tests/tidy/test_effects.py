"""Rules of effects: time, chance, the environment and Ray come in at few and named places."""

from collections.abc import Iterable

from tests.tidy.modules import PRODUCT, Module, modules

TIME_AND_CHANCE = {
    "time.time",
    "time.time_ns",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "uuid.uuid1",
    "uuid.uuid4",
    "random",
    "secrets",
    "os.urandom",
}
MAY_ASK_TIME_AND_CHANCE = {
    "actors/clock.py": "the server's clock and ids",
    "actors/line_server.py": "makes the token of its lines",
    "actors/ray_environment.py": "makes the token of our own Ray",
    "http_edge/aes_gcm.py": "makes nonces of AES-GCM",
    "http_edge/bench/made_log.py": "makes a log up by a seed",
    "http_edge/bench/made_people.py": "makes people up by a seed",
    "http_edge/bench/scale.py": "draws a sample by a fixed seed",
    "http_edge/client/sources.py": "the client's clock, nonces and jitter",
    "http_edge/didcomm/envelope.py": "makes content keys and nonces",
    "http_edge/didcomm/keys.py": "makes key pairs",
    "http_edge/key_agreement.py": "makes ephemeral keys",
    "http_edge/restoring.py": "tells restores from each other",
    "http_edge/mediator_keys.py": "makes the mediator's keys",
}
ENVIRONMENT = {"os.environ", "os.getenv", "os.putenv"}
MAY_TOUCH_THE_ENVIRONMENT = {
    "actors/ray_environment.py": "tells Ray's processes their token, and not to report usage",
    "http_edge/bench/server.py": "hands its own to the server that it starts",
    "http_edge/cli/settings.py": "the one reader of settings",
    "projections/java.py": "finds the operator's Java",
}
MAY_IMPORT_RAY = {
    "actors/ray_cluster.py": "the cluster and the hosts in it",
    "actors/ray_dedicated.py": "hosts of one identity",
    "actors/ray_placer.py": "the placer as a Ray actor",
    "http_edge/ray_edge.py": "edges as Ray actors",
    "http_edge/serve.py": "starts and stops them all",
}
PURE = (
    "actors/agents.py",
    "actors/archive.py",
    "actors/commands.py",
    "actors/contracts.py",
    "actors/decision.py",
    "actors/decisions.py",
    "actors/dedication.py",
    "actors/dedication_rules.py",
    "actors/edges.py",
    "actors/envelopes.py",
    "actors/evolution.py",
    "actors/identity.py",
    "actors/leases.py",
    "actors/message_queue.py",
    "actors/nonces.py",
    "actors/partitions.py",
    "actors/placement_table.py",
    "actors/refusals.py",
    "actors/replies.py",
    "eventstore/events.py",
    "http_edge/rate_limits.py",
    "http_edge/refusal_counts.py",
)
EFFECTS = {"aiohttp", "asyncio", "logging", "os", "psycopg", "ray", "socket", "sqlite3", "time"}


def _users(names: Iterable[str]) -> set[str]:
    """Paths of the modules that use one of these names or a module below one of them."""
    wanted = set(names)
    return {
        module.path
        for module in modules(*PRODUCT)
        for name, _ in module.uses()
        if name in wanted or name.partition(".")[0] in wanted
    }


def test_time_and_chance_come_in_at_named_places() -> None:
    assert _users(TIME_AND_CHANCE) == set(MAY_ASK_TIME_AND_CHANCE)


def test_the_environment_is_touched_at_named_places() -> None:
    assert _users(ENVIRONMENT) == set(MAY_TOUCH_THE_ENVIRONMENT)


def test_ray_stands_behind_its_own_modules() -> None:
    assert _users({"ray"}) == set(MAY_IMPORT_RAY)


def test_the_core_is_pure() -> None:
    effects = {
        path: EFFECTS & {name.partition(".")[0] for name, _ in Module(path).uses()} for path in PURE
    }
    assert {path: found for path, found in effects.items() if found} == {}
