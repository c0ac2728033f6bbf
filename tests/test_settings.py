"""Settings: read from flags, the environment and a file, and refused by name when they cannot be used."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from bandrank.errors import BadSetting
from bandrank.settings import Settings, asked_log_format, explain, table

ROOT = Path(__file__).resolve().parents[1]
OTHER_VALUES = {
    "model": "org/model",
    "revision": "main",
    "first_stage_weight": 0.25,
    "pooled": True,
    "unknown_model": "refuse",
    "similarity": "dot",
    "vector_size": 256,
    "models": "models.toml",
    "shadow_model": "org/shadow",
    "shadow_strategy": "cascade",
    "shadow_share": 0.5,
    "host": "0.0.0.0",  # noqa: S104
    "port": 8123,
    "keys": "keys.toml",
    "register_from": "anywhere",
    "trusted_proxies": "10.0.0.0/8",
    "tls_certificate": "certificate.pem",
    "tls_key": "key.pem",
    "device": "cpu",
    "dtype": "bfloat16",
    "kernels": "vectorized",
    "cuda_graphs": "off",
    "redis_url": "redis+cluster://one:1,two:2",
    "awake_ms": 2.5,
    "max_batch_rows": 5000,
    "max_waiting_rows": 7,
    "patience": 3.5,
    "max_in_flight_bytes": 16,
    "max_candidates": 8,
    "max_connections": 9,
    "hang_timeout_s": 7.5,
    "max_body_bytes": 9,
    "max_query_characters": 10,
    "max_candidate_characters": 11,
    "max_tokenizing_characters": 12,
    "max_resolved_bytes": 13,
    "max_answer_bytes": 14,
    "max_line_bytes": 15,
    "fast_model": "some/fast-model",
    "fast_revision": "v2",
    "cascade_depth": 7,
    "redis_timeout_s": 0.25,
    "cache_memory_bytes": 0,
    "cache_dtype": "int8",
    "cache_ttl_s": 0.0,
    "candidate_store_bytes": 0,
    "request_timeout_s": 2.5,
    "token_cache_bytes": 0,
    "tokenizer_threads": 3,
    "proxy_upstream": "https://search:9200",
    "proxy_ca": "authority.pem",
    "proxy_rules": "rules.toml",
    "proxy_depth": 17,
    "proxy_budget_ms": 18.0,
    "proxy_timeout_s": 19.0,
    "proxy_connections": 20,
    "proxy_max_response_bytes": 21,
    "log_level": "debug",
    "log_format": "json",
    "access_log": True,
    "drain_s": 5.0,
}
NAMES = [*OTHER_VALUES, "config"]


def variable(name: str) -> str:
    return f"BANDRANK_{name.upper()}"


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def write(path: Path, text: str) -> str:
    """Writes a file and returns its path."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_settings_have_defaults() -> None:
    settings = Settings.read(environ={})

    assert settings == Settings()
    assert (settings.host, settings.port, settings.device, settings.dtype) == ("127.0.0.1", 8000, "auto", "auto")
    assert (settings.model, settings.redis_url, settings.max_batch_rows) == ("sparse-w4", "", 0)


def test_settings_depend_on_arguments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `read` looks at the environment. Settings are validated and cannot be changed."""
    monkeypatch.setenv("BANDRANK_PORT", "7")

    assert Settings().port == 8000
    with pytest.raises(ValidationError):
        Settings().port = 9
    with pytest.raises(ValidationError):
        Settings(port=-1)


def test_every_setting_is_tried_below() -> None:
    """`OTHER_VALUES` has a value for each setting, which differs from its default."""
    assert set(Settings.model_fields) == set(NAMES)
    assert all(getattr(Settings(), name) != value for name, value in OTHER_VALUES.items())


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_variable_sets_its_setting(name: str) -> None:
    settings = Settings.read(environ={variable(name): str(OTHER_VALUES[name])})

    assert settings == Settings(**{name: OTHER_VALUES[name]})  # type: ignore[arg-type]  # one of many types
    assert type(getattr(settings, name)) is type(OTHER_VALUES[name])


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_flag_comes_before_a_variable_and_that_before_a_file(name: str, tmp_path: Path) -> None:
    value, default = OTHER_VALUES[name], getattr(Settings(), name)
    file = ["--config", write(tmp_path / "bandrank.toml", f"{name} = {json.dumps(value)}\n")]
    environ = {variable(name): str(default)}

    assert getattr(Settings.read(file, environ={}), name) == value
    assert getattr(Settings.read(file, environ=environ), name) == (value if default == "" else default)
    assert getattr(Settings.read([flag(name), str(value)], environ=environ), name) == value


def test_an_empty_variable_is_not_set() -> None:
    """Compose files and Makefiles pass unset variables on as empty ones."""
    assert Settings.read(environ=dict.fromkeys(map(variable, NAMES), "")) == Settings()


def test_other_variables_are_ignored() -> None:
    """Variables of other programs are no settings, nor are those of tests and demos with the same prefix."""
    environ = {"PATH": "/bin", "PORT": "1", "bandrank_port": "1", "BANDRANK_DEMO_DATA": "data", "BANDRANK_SOAK_S": "5"}

    assert Settings.read(environ=environ) == Settings()


@pytest.mark.parametrize("service", ["BANDRANK", "BANDRANK_REDIS"])
def test_what_kubernetes_says_of_services_is_no_setting(service: str) -> None:
    """Kubernetes sets such variables in each container, named after the services of its namespace."""
    links = {
        "SERVICE_HOST": "10.96.12.7",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_HTTP": "8000",
        "PORT": "tcp://10.96.12.7:8000",
        "PORT_8000_TCP": "tcp://10.96.12.7:8000",
        "PORT_8000_TCP_PROTO": "tcp",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_ADDR": "10.96.12.7",
    }

    assert Settings.read(environ={f"{service}_{name}": value for name, value in links.items()}) == Settings()
    with pytest.raises(BadSetting, match=f"^{service}_PORT "):
        Settings.read(environ={f"{service}_PORT": "eighty"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BANDRANK_PROT", "did you mean BANDRANK_PORT? "),
        ("BANDRANK_Port", "did you mean BANDRANK_PORT? "),
        ("BANDRANK_XYZ", ""),
        ("BANDRANK_", ""),
    ],
)
def test_a_misspelt_variable_is_an_error(name: str, meant: str) -> None:
    """The message names the variable, and the setting that is spelt most like it."""
    said = re.escape(f"{name} is not a setting; {meant}`bandrank serve --help` lists all settings")
    with pytest.raises(BadSetting, match=f"^{said}$"):
        Settings.read(environ={name: "8000"})


def test_a_misspelt_flag() -> None:
    """The error says why and what may have been meant, and abbreviated flags are not accepted."""
    for arguments, meant in (
        (["--prot", "8000"], "did you mean --port? "),
        (["--max-batch=1"], "did you mean --max-batch-rows? "),
        (["8000"], ""),
    ):
        with pytest.raises(BadSetting) as raised:
            Settings.read(arguments, environ={})
        assert explain(raised.value) == (
            f"unrecognized arguments: {' '.join(arguments)}; {meant}`bandrank serve --help` lists all settings"
        )


@pytest.mark.parametrize(
    ("key", "meant"), [("max_batch_row", "max_batch_rows"), ("BANDRANK_MODEL", "model"), ("redis-url", "redis_url")]
)
def test_a_misspelt_key_of_the_file_is_an_error(key: str, meant: str, tmp_path: Path) -> None:
    """The message names the file and the key, and the setting that is spelt most like it, as the file spells it."""
    path = write(tmp_path / "bandrank.toml", f'{key} = "x"\n')
    said = f"{path}: {key} is not a setting; did you mean {meant}? `bandrank serve --help` lists all settings"
    with pytest.raises(BadSetting, match=f"^{re.escape(said)}$"):
        Settings.read(["--config", path], environ={})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "eighty", "must be a valid integer"),
        ("port", "-1", "must be greater than or equal to 0"),
        ("port", "65536", "must be less than or equal to 65535"),
        ("port", "80.5", "must be a valid integer"),
        ("cascade_depth", "0", "must be greater than 0"),
        ("max_batch_rows", "-1", "must be greater than or equal to 0"),
        ("max_batch_rows", "1e3", "must be a valid integer"),
        ("max_waiting_rows", "0", "must be greater than 0"),
        ("max_candidates", "0", "must be greater than 0"),
        ("max_body_bytes", "-5", "must be greater than 0"),
        ("request_timeout_s", "0", "must be greater than 0"),
        ("request_timeout_s", "soon", "must be a valid number"),
        ("request_timeout_s", "nan", "must be a finite number"),
        ("request_timeout_s", "inf", "must be a finite number"),
        ("awake_ms", "-1", "must be greater than or equal to 0"),
        ("awake_ms", "60001", "must be less than or equal to 60000"),
        ("redis_timeout_s", "0", "must be greater than 0"),
        ("cache_memory_bytes", "-1", "must be greater than or equal to 0"),
        ("cache_ttl_s", "-0.5", "must be greater than or equal to 0"),
        ("candidate_store_bytes", "-1", "must be greater than or equal to 0"),
        ("token_cache_bytes", "-1", "must be greater than or equal to 0"),
        ("tokenizer_threads", "-1", "must be greater than or equal to 0"),
        ("dtype", "float64", "must be 'auto', 'float32', 'bfloat16', 'float16' or 'int8'"),
        ("cache_dtype", "int4", "must be 'float32', 'float16' or 'int8'"),
        ("kernels", "triton", "must be 'auto', 'cuda' or 'vectorized'"),
        ("cuda_graphs", "yes", "must be 'auto', 'on' or 'off'"),
        ("register_from", "home", "must be 'loopback' or 'anywhere'"),
        ("log_level", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bandrank.toml", f"{name} = '{text}'\n")
    for arguments, environ, where in (
        ([], {variable(name): text}, variable(name)),
        ([f"{flag(name)}={text}"], {}, variable(name)),
        ([], {"BANDRANK_CONFIG": path}, f"{path}: {name}"),
    ):
        with pytest.raises(BadSetting) as refused:
            Settings.read(arguments, environ=environ)
        assert str(refused.value) == f"{where} {expected}, got {text!r}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, " cannot be read: No such file or directory"),
        ("port = ", " is not valid TOML: "),
        ("prot = 8000", ": prot is not a setting"),
        ("BANDRANK_PORT = 8000", ": BANDRANK_PORT is not a setting"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(text: str | None, expected: str, tmp_path: Path) -> None:
    path = str(tmp_path / "bandrank.toml")
    if text is not None:
        write(tmp_path / "bandrank.toml", text)

    with pytest.raises(BadSetting) as refused:
        Settings.read(["--config", path], environ={})
    assert str(refused.value).startswith(path + expected)


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    settings = Settings.read(environ={"BANDRANK_REDIS_URL": "redis://:secret@host"})
    path = write(tmp_path / "bandrank.toml", "redis_url = ['redis://:secret@host']")

    assert "secret" not in f"{settings} {settings!r}"
    for read in (
        lambda: Settings.read(["--config", path], environ={}),
        lambda: Settings(redis_url=["redis://:secret@host"]),  # type: ignore[arg-type]  # wrong on purpose
    ):
        with pytest.raises(ValueError, match="redis_url") as refused:
            read()
        assert "secret" not in str(refused.value)


def test_an_error_is_explained_with_the_variable() -> None:
    assert explain(BadSetting("redis_url", "must be set")) == "BANDRANK_REDIS_URL must be set"
    assert explain(BadSetting("models.toml: models[0].name", "is missing")) == "models.toml: models[0].name is missing"


def test_the_format_of_the_log_is_known_whatever_is_wrong() -> None:
    environ = {"BANDRANK_LOG_FORMAT": "json"}

    assert asked_log_format(["--log-format=json"], {}) == asked_log_format(["--bad"], environ) == "json"
    assert asked_log_format(["--log-format", "text"], environ) == asked_log_format([], {}) == "text"


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Each setting has its flag, variable and description, below the usage of the command that was asked."""
    with pytest.raises(SystemExit) as ended:
        Settings.read(["--help"], environ={}, command="check", about="Look for faults.")

    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert text.startswith("usage: bandrank check [--SETTING VALUE ...] Look for faults. A setting is a flag, else")
    assert all(f"{flag(name)} " in text and f"[env: {variable(name)}]" in text for name in NAMES)
    assert all(" ".join(str(field.description).split()) in text for field in Settings.model_fields.values())


def test_the_page_has_the_table_of_settings() -> None:
    """docs/settings.md has the output of `python -m bandrank.settings`, which describes each setting once."""
    assert table() in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in table().splitlines()[2:]] == [*map(variable, Settings.model_fields)]
    assert all(field.description for field in Settings.model_fields.values())
    assert "| `BANDRANK_PORT` | integer ≥ 0, ≤ 65535 | 8000 | Port to listen on. |" in table()
    assert "| `BANDRANK_ACCESS_LOG` | `true`, `false` | `false` |" in table()
    assert "| `BANDRANK_CACHE_DTYPE` | `float32`, `float16`, `int8` | `float16` |" in table()
    assert "| `BANDRANK_CACHE_MEMORY_BYTES` | integer ≥ 0 | 256 MiB |" in table()


def test_variables_are_named_in_settings_alone() -> None:
    """Every other file refers to a setting by its field."""
    sources = (ROOT / "service").rglob("*.py")
    naming = {path.name for path in sources if "BANDRANK_" in path.read_text(encoding="utf-8")}

    assert naming == {"settings.py"}
