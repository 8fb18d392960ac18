"""Loading: precedence, origins, and every problem at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from feedd.config import Config, ConfigProblems, Effective, Problem, find_file, load, options, render
from feedd.errors import BadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.config import Option

MIB = 1024 * 1024


def _problems(flags: dict[str, tuple[object, str]], env: dict[str, str], file: Path | None = None) -> list[Problem]:
    with pytest.raises(ConfigProblems) as caught:
        load(flags, env, file)
    return list(caught.value.problems)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "feedd.toml"
    path.write_text(text)
    return path


def test_defaults_are_valid_and_say_so() -> None:
    """Nothing given: every option has a value, and each says it is the default."""
    effective = load({}, {})
    assert effective.config.listen == ["unix:///run/feedd/feedd.sock"]
    assert effective.config.status == "127.0.0.1:7071"
    assert effective.config.cache.size >= MIB
    assert set(effective.origins.values()) == {"default"}
    assert set(effective.origins) == set(render(effective.config))


def test_flag_beats_env_beats_file_beats_default(tmp_path: Path) -> None:
    """The strongest layer that names an option wins, and the origin names that layer."""
    file = _file(tmp_path, "[cache]\nsize = '1MiB'\nfree_reserve = '1MiB'\n[fetch]\nattempts = 7\n")
    env = {"FEEDD_CACHE__SIZE": "2MiB", "FEEDD_CACHE__FREE_RESERVE": "2MiB"}
    effective = load({"cache.size": ("3MiB", "flag --cache-size")}, env, file)
    shown = {name: (render(effective.config)[name], effective.origins[name]) for name in effective.origins}
    assert shown["cache.size"] == ("3MiB", "flag --cache-size")
    assert shown["cache.free_reserve"] == ("2MiB", "env FEEDD_CACHE__FREE_RESERVE")
    assert shown["fetch.attempts"] == ("7", f"{file} line 5")
    assert shown["fetch.part_size"] == ("auto", "default")


def test_all_problems_at_once_each_with_name_value_origin_and_expectation(tmp_path: Path) -> None:
    """Problems of all layers and kinds come in one error, none hiding another."""
    file = _file(tmp_path, '[cache]\nsize = "8 quux"\nsise = 4\n\n[fetch]\nattempts = 0\n')
    flags: dict[str, tuple[object, str]] = {"listen": (["unix://relative"], "flag --listen")}
    found = _problems(flags, {"FEEDD_LOG__LEVEL": "loud", "FEEDD_LOG__LEVLE": "info"}, file)
    by_name = {problem.name: problem for problem in found}
    assert set(by_name) == {"cache.size", "cache.sise", "fetch.attempts", "listen", "log.level", "FEEDD_LOG__LEVLE"}
    assert by_name["cache.size"] == Problem("cache.size", "8 quux", f"{file} line 2", by_name["cache.size"].expected)
    assert "like 64MiB" in by_name["cache.size"].expected
    assert "did you mean cache.size?" in by_name["cache.sise"].expected
    assert by_name["cache.sise"].origin == f"{file} line 3"
    assert by_name["fetch.attempts"].expected == "expected greater than or equal to 1"
    assert by_name["listen"].origin == "flag --listen"
    assert by_name["log.level"].origin == "env FEEDD_LOG__LEVEL"
    assert "did you mean FEEDD_LOG__LEVEL?" in by_name["FEEDD_LOG__LEVLE"].expected


def test_problems_are_a_bad_config() -> None:
    """The error is the tree's BadConfig, on one line, and lists every problem."""
    with pytest.raises(BadConfig) as caught:
        load({"fetch.attempts": ("0", "flag --set"), "drain.grace": ("x", "flag --set")}, {})
    text = str(caught.value)
    assert text.startswith("2 problems in the configuration")
    assert "fetch.attempts" in text
    assert "drain.grace" in text
    assert "\n" not in text


@pytest.mark.parametrize("option", [option for option in options() if option.env], ids=lambda option: option.name)
def test_every_option_can_come_from_the_environment(option: Option, tmp_path: Path) -> None:
    """The rendered effective value, given back by environment variable, gives the same configuration."""
    plain = load({}, {})
    env = {option.env: render(plain.config)[option.name]}
    if option.path[0] == "tls":  # unset by default, and of use only together
        pem = tmp_path / "x.pem"
        pem.write_text("")
        env = {"FEEDD_TLS__CERT": str(pem), "FEEDD_TLS__KEY": str(pem), option.env: str(pem)}
    elif option.name == "peers.ca":
        pem = tmp_path / "x.pem"
        pem.write_text("")
        env = {option.env: str(pem)}
    elif option.name == "peers.members_file":
        env = {option.env: str(tmp_path / "members")}
    elif option.name == "peers.listen":
        env = {option.env: "127.0.0.1:7072", "FEEDD_PEERS__MEMBERS": "feedd-0:7072"}
    elif option.path[0] == "peers" and option.name != "peers.timeout":
        env = {option.env: "127.0.0.1:7072"}
    elif option.name in {"decode.tokenizers", "decode.readable", "security.admin_socket"}:  # unset by default, too
        env = {option.env: str(tmp_path)}
    elif option.name == "decode.environment":
        env = {option.env: "MY_MODEL, MY_TABLES"}
    elif option.name == "security.allow_urls":
        env = {option.env: "s3://bucket/train/, file:///data/"}
    elif option.name == "security.allow_uids":
        env = {option.env: "1000, 1001"}
    effective = load({}, env)
    assert effective.origins[option.name] == f"env {option.env}"
    assert render(effective.config)[option.name] == env[option.env]


def test_variables_that_are_not_options_are_left_alone() -> None:
    """The client's variables, the command's own variables and Kubernetes' service links are no configuration."""
    env = {
        "FEEDD_ADDRESS": "unix:///x",
        "FEEDD_EPHEMERAL_ADDRESS": "unix:///x",
        "FEEDD_EXECUTABLE": "/x",
        "FEEDD_TLS_CA": "/x",
        "FEEDD_TLS_CERT": "/x",
        "FEEDD_TLS_KEY": "/x",
        "FEEDD_CONFIG": "/x",
        "FEEDD_DEBUG": "1",
        "FEEDD_SERVICE_HOST": "10.0.0.1",
        "FEEDD_SERVICE_PORT_GRPC": "7070",
        "FEEDD_PORT": "tcp://10.0.0.1:7070",
        "FEEDD_PORT_7070_TCP_ADDR": "10.0.0.1",
        "OTHER": "x",
    }
    assert set(load({}, env).origins.values()) == {"default"}


def test_bucket_settings_keep_dots_in_names(tmp_path: Path) -> None:
    """Bucket names with dots, the star for all others, and a flag for one of them."""
    file = _file(tmp_path, '[s3."my.bucket"]\nregion = "eu-west-1"\n[s3."*"]\naddressing_style = "path"\n')
    flags: dict[str, tuple[object, str]] = {'s3."my.bucket".anonymous': ("true", "flag --set")}
    effective = load(flags, {}, file)
    bucket = effective.config.s3["my.bucket"]
    assert (bucket.region, bucket.anonymous) == ("eu-west-1", True)
    assert effective.config.s3["*"].addressing_style == "path"
    assert effective.origins['s3."my.bucket".region'] == f"{file} line 2"
    assert effective.origins['s3."my.bucket".anonymous'] == "flag --set"


def test_bucket_settings_from_the_environment_are_json() -> None:
    """Bucket names do not fit into variable names, so they come as one JSON object."""
    effective = load({}, {"FEEDD_S3": json.dumps({"b.c": {"region": "eu-west-1"}})})
    assert effective.config.s3["b.c"].region == "eu-west-1"
    assert effective.origins['s3."b.c".region'] == "env FEEDD_S3"
    (problem,) = _problems({}, {"FEEDD_S3": "eu-west-1"})
    assert "expected a JSON object" in problem.expected


def test_misspelt_bucket_setting_suggests_the_right_one(tmp_path: Path) -> None:
    """A bucket's unknown setting is named with its line and the closest one."""
    (problem,) = _problems({}, {}, _file(tmp_path, '[s3."a.b"]\nregoin = "x"\n'))
    assert problem.name == 's3."a.b".regoin'
    assert problem.expected.endswith("did you mean region?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cache = 3\n", "expected a table [cache]"),
        ("cache = ", "expected toml"),
        ("[nothing]\nx = 1\n", "there is no such option"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    """A value where a table belongs, no TOML at all, a table nobody knows: each is told."""
    found = _problems({}, {}, _file(tmp_path, text))
    assert any(expected in problem.expected for problem in found)


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A file that was asked for and is not there is an error, not an empty configuration."""
    (problem,) = _problems({}, {}, tmp_path / "none.toml")
    assert (problem.name, problem.origin) == ("--config", "flag --config")


def test_file_is_found_by_flag_then_environment(tmp_path: Path) -> None:
    """The flag names the file, else the environment does."""
    assert find_file(tmp_path, {"FEEDD_CONFIG": "/etc/x"}) == tmp_path
    assert str(find_file(None, {"FEEDD_CONFIG": "/etc/x"})) == "/etc/x"


def test_listening_to_the_world_without_tls_is_refused() -> None:
    """TCP that other machines can reach needs TLS or an explicit yes; loopback does not."""
    (problem,) = _problems({"listen": (["0.0.0.0:7070"], "flag --listen")}, {})
    assert problem.name == "listen"
    assert "allow_insecure_tcp" in problem.expected
    load({"listen": (["0.0.0.0:7070"], "f"), "security.allow_insecure_tcp": ("true", "f")}, {})
    load({"listen": (["127.0.0.1:7070", "unix:///x.sock"], "f")}, {})


def test_halves_of_tls_are_refused(tmp_path: Path) -> None:
    """A certificate without its key, and client authorities without TLS, are told."""
    pem = tmp_path / "x.pem"
    pem.write_text("")
    assert [p.name for p in _problems({"tls.cert": (str(pem), "f")}, {})] == ["tls.key"]
    name = 's3."*".client_key'
    assert [p.name for p in _problems({name: (str(pem), "f")}, {})] == [name]
    assert [p.name for p in _problems({"tls.client_ca": (str(pem), "f")}, {})] == ["tls.client_ca"]
    (problem,) = _problems({"tls.cert": (str(tmp_path / "none"), "f")}, {})
    assert "expected a readable file" in problem.expected


def test_a_part_must_fit_into_the_byte_budget() -> None:
    """A part larger than all bytes in flight would wait for ever."""
    flags: dict[str, tuple[object, str]] = {"fetch.part_size": ("512MiB", "f"), "fetch.bytes_in_flight": ("1MiB", "f")}
    assert [p.name for p in _problems(flags, {})] == ["fetch.part_size"]


@pytest.mark.parametrize("text", ["off", "none", "OFF", ""])
def test_status_can_be_off(text: str) -> None:
    """No status page is a choice, and is shown as such."""
    effective = load({"status": (text, "flag --status")}, {})
    assert effective.config.status is None
    assert render(effective.config)["status"] == "off"


def test_secrets_are_never_rendered() -> None:
    """Credentials in a URL are hidden in the effective configuration and in problems."""
    url = "https://user:hunter2@minio.example:9000"
    effective = load({"s3.b.endpoint_url": (url, "f")}, {})
    assert "hunter2" not in "".join(render(effective.config).values())
    with pytest.raises(ConfigProblems) as caught:
        load({"s3.b.endpoint": (url, "f")}, {})
    assert "hunter2" not in str(caught.value)


def test_configuration_is_frozen() -> None:
    """What was logged at the start stays true."""
    effective: Effective = load({}, {})
    assert isinstance(effective.config, Config)
    with pytest.raises(ValueError, match="frozen"):
        effective.config.cache.size = 1


def test_quotas_come_from_file_and_environment(tmp_path: Path) -> None:
    """A quota per URL is a table in the file, pairs in the environment, and shown as it can be typed."""
    path = tmp_path / "feedd.toml"
    path.write_text('[cache.quotas]\n"s3://bucket/train/" = "500GiB"\n"s3://bucket/" = 4096\n')
    from_file = load({}, {}, path)
    assert from_file.config.cache.quotas == {"s3://bucket/train/": 500 << 30, "s3://bucket/": 4096}
    shown = render(from_file.config)["cache.quotas"]
    assert shown == "s3://bucket/train/=500GiB, s3://bucket/=4KiB"
    assert load({}, {"FEEDD_CACHE__QUOTAS": shown}).config.cache.quotas == from_file.config.cache.quotas
    for wrong in ("s3://bucket/", "bucket=1GiB", "s3://bucket/=0", "=5"):
        with pytest.raises(ConfigProblems, match=r"cache\.quotas"):
            load({}, {"FEEDD_CACHE__QUOTAS": wrong})


def test_more_memory_than_there_is_is_refused() -> None:
    """A bypass in memory that could not exist is refused at once."""
    with pytest.raises(ConfigProblems, match=r"cache\.bypass .* at most the memory this process may use"):
        load({"cache.bypass": ("1000TiB", "flag --set")}, {})


@pytest.mark.parametrize("place", ["flag", "environment", "file"])
@pytest.mark.parametrize(
    ("name", "instead"),
    [("cache.memory", r"set cache\.dir to a folder on tmpfs"), ("fetch.transport", "leave the option out")],
)
def test_a_removed_option_says_what_to_write_instead(tmp_path: Path, name: str, instead: str, place: str) -> None:
    """The error about a removed option tells what to do instead, wherever the option is set."""
    path = tmp_path / "feedd.toml"
    section, key = name.split(".")
    path.write_text(f'[{section}]\n{key} = "auto"\n' if place == "file" else "")
    flags = {name: ("auto", "flag --set")} if place == "flag" else {}
    env = {f"FEEDD_{section}__{key}".upper(): "auto"} if place == "environment" else {}
    with pytest.raises(ConfigProblems, match=instead) as caught:
        load(flags, env, path)
    assert len(caught.value.problems) == 1
