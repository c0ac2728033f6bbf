"""Settings: from the environment and from flags, and refused by name when they cannot be used."""

from dataclasses import fields

import pytest

from bandrank.settings import BadSetting, Settings

OTHER_VALUES = {
    "model": "org/model",
    "revision": "main",
    "host": "127.0.0.1",
    "port": 8123,
    "device": "cpu",
    "dtype": "bfloat16",
    "kernels": "vectorized",
    "cuda_graphs": "off",
    "redis_url": "redis://localhost",
    "max_batch_rows": 5000,
    "max_waiting_rows": 7,
    "max_candidates": 8,
    "max_body_bytes": 9,
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
    "log_level": "debug",
}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"BANDRANK_{name.upper()}"


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def test_what_is_not_set_has_its_default() -> None:
    """The defaults that the README names."""
    settings = Settings.read(environ={})

    assert settings == Settings()
    assert (settings.host, settings.port, settings.device, settings.dtype) == ("0.0.0.0", 8000, "auto", "auto")  # noqa: S104
    assert (settings.model, settings.redis_url, settings.max_batch_rows) == ("", "", 0)


def test_every_setting_is_tried_below() -> None:
    """Each of them with a value that is not the default."""
    assert {field.name for field in fields(Settings)} == OTHER_VALUES.keys()
    assert all(getattr(Settings(), name) != value for name, value in OTHER_VALUES.items())


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_variable_sets_it(name: str) -> None:
    """That one alone, in its type."""
    settings = Settings.read(environ={variable(name): str(OTHER_VALUES[name])})

    assert settings == Settings(**{name: OTHER_VALUES[name]})  # type: ignore[arg-type]  # one of many types
    assert type(getattr(settings, name)) is type(OTHER_VALUES[name])


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_flag_comes_before_a_variable(name: str) -> None:
    """What is typed is meant."""
    value = str(OTHER_VALUES[name])
    settings = Settings.read([flag(name), value], environ={variable(name): str(getattr(Settings(), name))})

    assert settings == Settings(**{name: OTHER_VALUES[name]})  # type: ignore[arg-type]  # one of many types


def test_an_empty_variable_is_not_set() -> None:
    """As compose files and Makefiles pass on what nobody set."""
    assert Settings.read(environ={variable(name): "" for name in OTHER_VALUES}) == Settings()


def test_other_variables_are_none_of_ours() -> None:
    """Those of other programs, and those of the tests and demos that share the prefix."""
    environ = {"PATH": "/bin", "PORT": "1", "BANDRANK_DEMO_DATA": "data", "BANDRANK_SOAK_S": "5"}

    assert Settings.read(environ=environ) == Settings()


def test_a_misspelt_variable_is_an_error() -> None:
    """Which names it, and what there is."""
    with pytest.raises(BadSetting, match=r"BANDRANK_PROT.*BANDRANK_PORT"):
        Settings.read(environ={"BANDRANK_PROT": "8000"})


def test_a_misspelt_flag_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2; abbreviations are not guessed."""
    for arguments in (["--prot", "8000"], ["--max-batch", "1"]):
        with pytest.raises(SystemExit) as ended:
            Settings.read(arguments, environ={})
        assert ended.value.code == 2
        assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "eighty"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "80.5"),
        ("max_batch_rows", "-1"),
        ("max_batch_rows", "1e3"),
        ("max_waiting_rows", "0"),
        ("max_candidates", "0"),
        ("max_body_bytes", "-5"),
        ("request_timeout_s", "0"),
        ("request_timeout_s", "soon"),
        ("request_timeout_s", "nan"),
        ("token_cache_bytes", "-1"),
        ("tokenizer_threads", "-1"),
        ("dtype", "float64"),
        ("kernels", "triton"),
        ("cuda_graphs", "yes"),
        ("log_level", "loud"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, text: str) -> None:
    """With the variable and the value, from either source."""
    for arguments, environ in ([], {variable(name): text}), ([f"{flag(name)}={text}"], {}):
        with pytest.raises(BadSetting, match=variable(name)) as refused:
            Settings.read(arguments, environ=environ)
        assert text in str(refused.value)


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """With its flag and its variable."""
    with pytest.raises(SystemExit) as ended:
        Settings.read(["--help"], environ={})

    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(flag(name) in text and variable(name) in text for name in OTHER_VALUES)
