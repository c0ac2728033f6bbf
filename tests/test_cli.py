"""The commands of `bandrank`: what they print, and their exit codes."""

import logging
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from support.certificates import make_certificate
from support.deberta import save_deberta
from support.keys import write_keys
from support.models import change_weights, save_bi_encoder, save_cross_encoder
from support.redis_server import free_port, redis_server

from bandrank import __version__
from bandrank.__main__ import USAGE, main
from bandrank.api.keys import KeyFile
from bandrank.errors import BadSetting
from bandrank.models.shipped import FAST, FOLDER
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the settings of whoever runs the tests."""
    for name in ("MODEL", "HOST", "PORT", "DEVICE", "DTYPE", "REDIS_URL", "MAX_BATCH_ROWS"):
        monkeypatch.delenv(f"BANDRANK_{name}", raising=False)


@pytest.mark.parametrize("command", ["version", "--version"])
def test_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("command", ["help", "-h", "--help"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help that was asked for is not an error: it goes to stdout, where a pager can read it."""
    assert main([command]) == 0
    assert capsys.readouterr().out == f"{USAGE}\n"


@pytest.mark.parametrize("arguments", [[], ["sevre"], ["--port", "8000"]])
def test_an_unknown_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage goes to stderr with the error last, where it is seen, and the exit code is 2."""
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(USAGE)
    assert told.removeprefix(USAGE).strip() == "".join(f"bandrank: there is no command {it}" for it in arguments[:1])


def test_an_unexpected_error_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is a record like others, with its traceback."""
    (tmp_path / "model.safetensors").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(FOLDER / FAST / name)

    assert main(["check", "--model", str(tmp_path)]) == 1
    assert caplog.messages[-1] == "check failed"
    assert "OSError" in caplog.text


@pytest.mark.parametrize("arguments", [[], ["--dtype", "int8", "corpus.jsonl"]])
def test_precompute_without_a_file_in_its_place(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message says where the file goes, without the usage of all commands."""
    assert main(["precompute", *arguments]) == 2
    assert re.fullmatch("bandrank: precompute needs a JSON-lines file right after it.*\n", capsys.readouterr().err)


def test_precompute_lists_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["precompute", "--help"])
    assert ended.value.code == 0
    assert re.match(r"usage: bandrank precompute FILE \[.*\n\nRegister (.|\n)*--redis-url", capsys.readouterr().out)


def test_the_installed_command_is_this_one() -> None:
    """`bandrank` and `python -m bandrank` are the same."""
    (script,) = entry_points(group="console_scripts", name="bandrank")

    assert script.load() is main


def test_a_new_key_is_printed_once_beside_what_the_file_of_keys_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line is the key, and the rest is its table for the file of keys, which does not contain the key."""
    path = tmp_path / "keys.toml"
    keys = []
    for name, arguments in (("search", []), ("ingest-2", ["--scopes", "register, rank"])):
        assert main(["key", name, *arguments]) == 0
        key, empty, table = capsys.readouterr().out.split("\n", 2)
        assert empty == ""
        assert key not in table
        keys.append(key)
        with path.open("a", encoding="utf-8") as file:
            file.write(table)
    file_of_keys = KeyFile(str(path))
    found = [file_of_keys.find(key.encode()) for key in keys]

    assert [key.name for key in found if key is not None] == file_of_keys.names == ["search", "ingest-2"]
    assert [key.table.scopes for key in found if key is not None] == [["rank"], ["rank", "register"]]
    assert all(len(key) >= 43 for key in keys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name"),
        (["two words"], "1 to 32 letters, digits, - and _"),
        (["127.0.0.1"], "1 to 32 letters, digits, - and _"),
        (["x" * 33], "1 to 32 letters, digits, - and _"),
        (["search", "--scopes", "rank,root"], "must be some of rank, register, admin"),
        (["search", "--scopes", ""], "must be some of rank, register, admin"),
    ],
)
def test_a_key_that_cannot_be_made(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["key", *arguments])
    printed = capsys.readouterr()

    assert ended.value.code == 2
    assert printed.out == ""
    assert told in printed.err


def test_check_reads_what_serving_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` names the keys and the certificate, and refuses an unusable setting as `serve` does."""
    model = ["--model", str(save_cross_encoder(tmp_path / "model")), "--device", "cpu"]
    certificate = make_certificate(tmp_path)
    good = ["--keys", write_keys(tmp_path / "keys.toml")]
    good += ["--tls-certificate", certificate.certificate, "--tls-key", certificate.key]
    capsys.readouterr()

    assert main(["check", *model, *good]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^keys +rank, register, admin$", out, re.MULTILINE)
    assert re.search(rf"^TLS +{re.escape(certificate.certificate)}$", out, re.MULTILINE)
    for wrong, told in (
        (["--keys", str(tmp_path / "missing")], "missing cannot be read"),
        (["--tls-key", certificate.key], "BANDRANK_TLS_CERTIFICATE must be set too"),
        (["--trusted-proxies", "*"], "BANDRANK_TRUSTED_PROXIES must be addresses or networks"),
    ):
        for command in ("check", "serve"):
            assert main([command, *model, *wrong]) == 2
            printed = capsys.readouterr().err
            assert told in printed
            assert "Traceback" not in printed


def test_check_passes_on_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(save_cross_encoder(tmp_path)), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert all(fact in out for fact in (__version__, torch.__version__, str(tmp_path), "cross_encoder", "float32"))
    assert out.endswith("passed\n")


def test_check_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deberta, bi_encoder = save_deberta(tmp_path / "deberta"), save_bi_encoder(tmp_path / "bi_encoder")
    for folder, facts in (
        (
            deberta,
            {
                "encoder": "deberta, 2 layers of 32, 4 heads",
                "reads": "[CLS] QUERY [SEP] CANDIDATE [SEP]",
                "length": "512 tokens, at most 256 of them the query's; longer candidates in passages, up to 16384 "
                "tokens",
                "head": "a layer with gelu, 1 output",
                "pattern": "full attention",
                "precision": "float32; float16 may overflow",
                "attention": "plain torch: the kernels do not compute disentangled attention",
            },
        ),
        (
            bi_encoder,
            {
                "encoder": "bert, 2 layers of 32, 4 heads",
                "reads": "[CLS] QUERY [SEP] and [CLS] CANDIDATE [SEP]",
                "length": "128 tokens of a query, 128 of a candidate",
                "pooling": "mean, compared by cosine: its module Normalize",
                "precision": "float32",
            },
        ),
    ):
        assert main(["check", "--model", str(folder), "--device", "cpu"]) == 0
        found = {line[:20].split()[-1]: line[21:] for line in capsys.readouterr().out.splitlines()}
        assert found.items() >= facts.items()
        assert int(found["parameters"].replace(",", "")) > 10_000


@pytest.mark.parametrize(
    ("flags", "told"),
    [([], "cosine: the default, as its files do not say"), (["--similarity", "dot"], "dot: as asked for")],
)
def test_check_says_why_vectors_are_compared_so(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_bi_encoder(tmp_path / "bi_encoder", normalize=False)
    capsys.readouterr()

    assert main(["check", "--model", str(folder), "--device", "cpu", *flags]) == 0
    assert f"mean, compared by {told}\n" in capsys.readouterr().out


def test_scores_that_overflow_are_an_error_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """`check` warns of float16 and says when its scores have overflowed; bfloat16 holds the same states."""
    folder = save_deberta(tmp_path)
    name = "deberta.embeddings.LayerNorm.weight"
    change_weights(folder, lambda weights: weights | {name: torch.full_like(weights[name], 1e5)})
    command = ["check", "--model", str(folder), "--device", "cpu", "--dtype"]

    assert main([*command, "float16"]) == 1
    assert "computes in float16, as asked for, and may overflow" in caplog.text
    out = capsys.readouterr().out
    assert (
        "self-test            failed: the model gave a score that is not a number: its states may be too large" in out
    )
    assert main([*command, "bfloat16"]) == 0


def test_check_fails_if_redis_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` names the Redis address and the cause, but not the password, and passes if Redis answers."""
    model = ["--model", str(save_cross_encoder(tmp_path / "model")), "--device", "cpu"]
    address = f"127.0.0.1:{free_port()}"

    assert main(["check", *model, "--redis-url", f"redis://:secret@{address}"]) == 1
    out = capsys.readouterr().out
    told = rf"^self-test +failed: .*{address}.* does not answer: ConnectionError: \[Errno \d+\] Connect call failed .*$"
    assert re.search(told, out, re.MULTILINE)
    assert "secret" not in out
    with redis_server(tmp_path / "redis") as server:
        assert main(["check", *model, "--redis-url", server.url]) == 0
        server.freeze()
        assert main(["check", *model, "--redis-url", server.url]) == 1
    assert "does not answer: TimeoutError" in capsys.readouterr().out


def test_check_shows_the_settings_that_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings from the environment count as well as flags."""
    monkeypatch.setenv("BANDRANK_MODEL", str(save_bi_encoder(tmp_path / "model")))
    monkeypatch.setenv("BANDRANK_DTYPE", "bfloat16")

    assert main(["check", "--device", "cpu"]) == 0
    assert re.search(r"\(bi_encoder\)(.|\n)* precision +bfloat16$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_bi_encoder(tmp_path / "model"))
    capsys.readouterr()

    assert main(["check", "--model", model, "--device", "cuda"]) == 2
    assert "BANDRANK_DEVICE" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_kernels_that_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_cross_encoder(tmp_path / "model"))
    settings = Settings(model=model, device="cpu", kernels="cuda")

    with pytest.raises(BadSetting, match=r"kernels cannot be cuda for .*torch sees no GPU"):
        assemble(load_models(settings), settings)
    assert main(["check", "--model", model, "--device", "cpu", "--kernels", "vectorized"]) == 0
    assert "plain torch: 'vectorized' was asked for" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_graphs_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_cross_encoder(tmp_path / "model"))
    settings = Settings(model=model, device="cpu", cuda_graphs="on")

    with pytest.raises(BadSetting, match=r"cuda_graphs cannot be on for .*torch sees no GPU"):
        assemble(load_models(settings), settings)
    assert main(["check", "--model", model, "--device", "cpu", "--cuda-graphs", "off"]) == 0
    assert re.search(r"CUDA graphs +not used: they are switched off", capsys.readouterr().out)


def test_a_model_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the model, and the exit code is 2. The log names it first, since a download may take minutes."""
    missing = str(tmp_path / "missing")
    caplog.set_level(logging.INFO, logger="bandrank")

    assert main(["check", "--model", missing]) == 2
    assert capsys.readouterr().err == f"bandrank: {missing}: no such folder\n"
    assert caplog.messages == [f"loading {missing}"]


def test_a_folder_that_holds_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(tmp_path)]) == 2
    assert "no config.json" in capsys.readouterr().err


def test_without_a_model_the_default_ones_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert f"{FAST} (mix_encoder)" in out
    assert f"{Settings().model} (cross_encoder)" in out
    for stage in ("fast", "accurate"):
        assert re.search(rf"^{stage} attention +plain torch: .*the tensors are on cpu", out, re.MULTILINE)
        assert re.search(rf"^{stage} CUDA graphs +not used: .*the tensors are on cpu", out, re.MULTILINE)


def test_check_tells_of_a_shadow_and_tests_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` loads the shadow model too, and refuses a strategy that this model does not have."""
    served = ["--model", str(save_cross_encoder(tmp_path / "served")), "--device", "cpu"]
    shadow = ["--shadow-model", str(save_bi_encoder(tmp_path / "next")), "--shadow-share", "0.05"]
    assert main(["check", *served, *shadow]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert f"{'models':20} served" in lines
    assert f"{'shadow':20} next, of 0.05 of the requests" in lines
    assert any(line.startswith("next fast model") for line in lines)
    assert main(["check", *served, *shadow, "--shadow-strategy", "accurate"]) == 2
    assert "BANDRANK_SHADOW_STRATEGY must be one of auto, fast, got 'accurate'" in capsys.readouterr().err


def test_a_scorer_that_adds_to_another_goes_with_no_third_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scorer that was trained to add to another's scores accepts no other fast model."""
    model = str(save_bi_encoder(tmp_path / "model"))
    capsys.readouterr()

    assert main(["check", "--fast-model", model]) == 2
    assert f"BANDRANK_FAST_MODEL must be {FAST}, or not be set" in capsys.readouterr().err
