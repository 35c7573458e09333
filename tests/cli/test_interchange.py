"""``llmgpu import`` and ``llmgpu export`` as processes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.bpe.interchange.samples import assert_same_ids, cl100k_path, train_peer, trained
from tests.cli.conftest import Run, fails
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder
from tests.lm.samples import save


@pytest.fixture
def v_bin(tmp_path: Path) -> Path:
    trained().save(tmp_path / "v.bin")
    return tmp_path / "v.bin"


@pytest.mark.parametrize("name", WRITERS)
def test_there_and_back(llmgpu: Run, v_bin: Path, name: str) -> None:
    done = llmgpu("export", "v.bin", "--to", name, "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["format"], summary["vocabulary_size"]) == (name, 400)
    sources = ["out/vocab.json", "out/merges.txt"] if name == "gpt2" else ["out"]
    for chosen in ([], ["--from", name]):
        done = llmgpu("import", *sources, *chosen, "-o", "back.bin", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["format"] == name
        back = Vocabulary.load(v_bin.parent / "back.bin")
        assert back.tokens == trained().tokens
        assert back.special_tokens == trained().special_tokens
        assert (back.fingerprint == trained().fingerprint) == (name != "tiktoken")


def test_streams(llmgpu: Run, v_bin: Path) -> None:
    done = llmgpu("export", "v.bin", "--to", "huggingface", "-o", "-", "--json", "-q")
    assert_same_ids(trained(), Tokenizer.from_str(done.stdout.decode()), 20)
    assert json.loads(done.stderr)["fingerprint"] == trained().fingerprint
    ranks = llmgpu("export", "v.bin", "--to", "tiktoken", "-o", "-").stdout
    assert ranks.count(b"\n") == 399 and ranks.startswith(b"AA== 0\n")
    assert sorted(path.name for path in v_bin.parent.iterdir()) == ["v.bin"]


def test_options_of_import(llmgpu: Run, tmp_path: Path) -> None:
    lines = [b"%s %d\n" % (base64.b64encode(bytes([value])), value) for value in range(256)]
    (tmp_path / "r").write_bytes(b"".join(lines))
    special = ("--special-token", "<a=b>=300", "--special-token", "<c>=256")
    done = llmgpu("import", "r", "--pattern", "class", *special)
    assert done.returncode == 0, done.stderr
    made = Vocabulary.load(tmp_path / "v.bin")
    assert (made.pattern, made.special_tokens) == ("class", {"<a=b>": 300, "<c>": 256})


def test_notes_are_on_stderr(llmgpu: Run, tmp_path: Path) -> None:
    peer = train_peer()
    peer.add_tokens(["<plain>"])
    peer.save(str(tmp_path / "t.json"))
    done = llmgpu("import", "t.json", "--json")
    assert b"note: added tokens that are not special" in done.stderr and b"<plain>" in done.stderr
    assert json.loads(done.stdout)["special_tokens"] == 3
    assert llmgpu("import", "t.json", "-q", "--force").stderr == b""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["import", "missing"], 1, "missing"),
        (["import", "missing", "--from", "huggingface"], 1, "missing"),
        (["info", "x.bin"], 1, "not an llmgpu vocabulary; a token file needs x.bin.json"),
        (["info", "x.gguf"], 1, "x.gguf: not a GGUF file of version 2 or 3"),
        (["info", "x.model"], 1, "x.model: not a SentencePiece model"),
        (["export", "v.bin", "-o", "out.txt"], 2, "give --to FORMAT: one of huggingface, tiktok"),
        (["export", "v.bin", "-o", "no/t.json"], 1, "make the folder no first"),
        (["tokenize", "--vocab", "v.bin", "a text"], 1, "if it is the text itself, pipe it in"),
        (["tokenize", "--vocab", "v.bin", "--decode", "97"], 1, "pipe ids into standard input"),
        (["tokenize", "--vocab", "v.bin", "--decode", "x.bin"], 1, "x.bin has no side file"),
        (["generate", "v.bin"], 1, "v.bin: a file, not a run folder: name a run of train, one of"),
        (
            ["generate", "x.gguf"],
            1,
            "or the folder of a model's config.json; llama.cpp runs GGUF files",
        ),
        (["info", "t.txt"], 1, "not an llmgpu vocabulary but text: give a file of bpe-train or"),
        (["info", "t.txt"], 1, "; info also describes runs, word counts and files of ids, but no"),
        (["import", "v.bin"], 1, "v.bin is already an llmgpu vocabulary"),
        (["import", "ranks"], 1, "--pattern"),
        (["import", "ranks", "--from", "huggingface"], 1, "ranks"),
        (["import", "t.json", "--from", "tiktoken"], 1, "t.json: line 1"),
        (["import", "t.json", "--from", "gpt2"], 1, "merges.txt"),
        (["import", "t.json", "ranks"], 1, "t.json"),
        (["import", "t.json", "ranks", "--from", "tiktoken"], 1, "merges.txt"),
        (["import", "t.json", "--pattern", "gpt2"], 1, "has its own pattern"),
        (["import", "t.json", "-o", "/dev/full"], 1, "/dev/full"),
        (["import", "t.json", "--from", "xml"], 2, "xml"),
        (["import", "ranks", "--special-token", "x"], 2, "is not a text and an id"),
        (["import", "ranks", "--special-token", "=5"], 2, "is not a text and an id"),
        (["import", "ranks", "--pattern", "gpt9"], 2, "gpt9"),
        (["export", "missing.bin", "--to", "gpt2", "-o", "out"], 1, "missing.bin"),
        (
            ["export", "ranks", "--to", "gpt2", "-o", "out"],
            1,
            "ranks: a tiktoken file does not say",
        ),
        (["export", "v.bin", "--to", "tiktoken", "-o", "/dev/full"], 1, "/dev/full"),
        (["export", "v.bin", "--to", "gpt2", "-o", "t.json"], 1, "t.json"),
        (["export", "v.bin", "--to", "gpt2"], 2, "--output"),
        (["export", "v.bin", "-o", "out"], 2, "--to"),
    ],
)
def test_bad_input(llmgpu: Run, v_bin: Path, arguments: list[str], code: int, message: str) -> None:
    folder = v_bin.parent
    train_peer().save(str(folder / "t.json"))
    (folder / "ranks").write_bytes(b"YQ== 0\n")
    (folder / "t.txt").write_text("a text")
    for name in ("x.gguf", "x.model", "x.bin"):
        (folder / name).write_bytes(b"\x0a\x0e\x00\xff")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    fails(llmgpu(*arguments), code, message)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_the_ending_of_the_output_gives_the_format(llmgpu: Run, v_bin: Path) -> None:
    folder = llmgpu("export", "v.bin", "-o", "folder/")
    assert folder.returncode == 0 and (v_bin.parent / "folder" / "tokenizer_config.json").is_file()
    for name, written in (("t.json", b'"version"'), ("t.tiktoken", b" 0\n"), ("hf", b'"version"')):
        to = ["--to", "hf"] if name == "hf" else []
        done = llmgpu("export", "v.bin", "-o", name, *to)
        assert done.returncode == 0, done.stderr
        assert written in (v_bin.parent / name).read_bytes()
        assert (b"hf/ is a folder for AutoTokenizer" in done.stderr) is (name == "hf")


def test_vocabularies_of_others_are_taken_everywhere(llmgpu: Run, v_bin: Path) -> None:
    folder = v_bin.parent
    (folder / "hf").mkdir()
    (folder / "text").write_text("it's a text, it's one")
    for name, out in (("hf", "hf/tokenizer.json"), ("gpt2", "pair"), ("tiktoken", "r")):
        assert llmgpu("export", "v.bin", "--to", name, "-o", out).returncode == 0
    wanted = llmgpu("tokenize", "text", "--vocab", "v.bin", "--device", "cpu").stdout
    for vocab in ("hf", "hf/tokenizer.json", "pair", "pair/merges.txt", "r"):
        ids = llmgpu("tokenize", "text", "--vocab", vocab, "--device", "cpu")
        assert ids.returncode == 0 and ids.stdout == wanted, ids.stderr
        back = llmgpu("tokenize", "--vocab", vocab, "--decode", stdin=ids.stdout)
        assert back.stdout == (folder / "text").read_bytes()
        assert b"tokens: 400" in llmgpu("info", vocab).stdout
        done = llmgpu("import", vocab, "-o", "again.bin")
        assert done.returncode == 0, done.stderr
        done = llmgpu("export", vocab, "--to", "huggingface", "-o", "again.json")
        assert done.returncode == 0, done.stderr
    done = llmgpu("tokenize", "text", "--vocab", "hf", "-o", "hf/tokenizer.json", "--force")
    fails(done, 1, "hf/tokenizer.json is an input")
    fails(llmgpu("info", "o300k"), 1, "can't read the vocabulary o300k: no such file, and no publi")
    for name in ("Qwen/Qwen2", "Qwen/Qwen2.5-0.5B"):
        fails(llmgpu("info", name), 1, f"hf download {name} tokenizer.json --local-dir FOLDER")
    fails(llmgpu("info", "runs/v.bin"), 1, "runs/v.bin: No such file or directory\n")


def test_a_published_vocabulary_by_name(
    llmgpu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl100k_path()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    done = llmgpu("tokenize", "--vocab", "cl100k", "--device", "cpu", stdin=b"hello world")
    assert done.stdout == b"15339 1917\n", done.stderr
    fails(llmgpu("info", "gpt2"), 1, "tiktoken.get_encoding('r50k_base')")
    (tmp_path / "cl100k").write_text("something else")
    fails(llmgpu("info", "cl100k"), 1, "cl100k: not an llmgpu vocabulary")


def test_a_model_to_gguf(llmgpu: Run, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 3)
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    options = ("--weights", "f16", "--chat-template", "t.jinja", "--json")
    done = llmgpu("export", "run", "--to", "gguf", "-o", "m.gguf", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == "gguf"
    reader = package.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["tokenizer.chat_template"].contents() == "{{ messages }}"
    assert len(reader.tensors) == 20
    step = "run/step-00000003"
    done = llmgpu("export", "run", "--to", "hf", "-o", "hf.json")
    assert f"transformers opens the model in {step}".encode() in done.stderr, done.stderr
    done = llmgpu("export", step, "--to", "gguf", "-o", f"{step}/model.safetensors", "--force")
    fails(done, 1, "model.safetensors is an input")


def test_a_model_to_a_hugging_face_folder(llmgpu: Run, tmp_path: Path) -> None:
    """The files are those of the checkpoint, which transformers opens."""
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 3)
    step, folder = tmp_path / "run" / "step-00000003", tmp_path / "hf"
    export = ("export", "run", "--to", "hf", "-o", "hf/")
    done = llmgpu(*export)
    assert done.returncode == 0 and b"only the tokenizer" not in done.stderr, done.stderr
    assert f"hf/: the model of {step.relative_to(tmp_path)} with".encode() in done.stderr
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert json.loads((folder / name).read_text()) == json.loads((step / name).read_text())
    assert (folder / "model.safetensors").read_bytes() == (step / "model.safetensors").read_bytes()
    assert {path.name for path in folder.iterdir()} == {
        *names,
        "model.safetensors",
        "special_tokens_map.json",
    }
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "model.safetensors").write_bytes(b"")
    assert llmgpu(*export).returncode == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # A model that transformers has saved again, or that was never of llmgpu, is kept.
    written = json.loads((folder / "config.json").read_text())
    others = {key: value for key, value in written.items() if key != "llmgpu"}
    for config in (written | {"transformers_version": "5.0"}, others):
        (folder / "config.json").write_text(json.dumps(config))
        fails(llmgpu(*export), 1, "hf/config.json is text, and other text would replace it")
    assert llmgpu(*export, "--force").returncode == 0
    again = llmgpu("export", "hf", "--to", "hf", "-o", "copy/")
    assert again.returncode == 0, again.stderr
    for path in folder.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()
    # A checkpoint is no export.
    (tmp_path / "other").mkdir()
    save(tmp_path / "other", 3)
    checkpoint = f"other/{step.name}"
    into = llmgpu("export", "run", "--to", "hf", "-o", f"{checkpoint}/")
    fails(into, 1, f"{checkpoint}/config.json is text, and other text would replace it")
    into = llmgpu("export", str(step), "--to", "hf", "-o", f"{step}/", "--force")
    fails(into, 1, "is an input")
    fails(llmgpu(*export, "--weights", "f16"), 2, "--weights is only for exporting a model to gguf")
    # A model in a run folder would hide the checkpoints; a tokenizer would no longer fit a model.
    (tmp_path / "run" / "run.lock").touch()
    fails(llmgpu("export", "hf", "--to", "hf", "-o", "run/", "--force"), 1, "run/ is a run folder")
    trained().save(tmp_path / "v.bin")
    other = ("export", "v.bin", "--to", "hf", "-o", "hf/")
    fails(llmgpu(*other), 1, "hf/ has a model, whose tokenizer would be replaced")
    assert llmgpu(*other, "--force").returncode == 0


def test_an_export_keeps_the_tokenizer_of_another_tool(llmgpu: Run, vocab: Path) -> None:
    ours = ("export", "v.bin", "--to", "huggingface", "-o", "tokenizer.json")
    assert llmgpu(*ours).returncode == llmgpu(*ours).returncode == 0
    own = (vocab.parent / "tokenizer.json").read_bytes()
    content = json.loads(own)
    (vocab.parent / "hf").mkdir()
    for indent in (None, 2):
        for name in ("tokenizer.json", "hf/tokenizer.json"):
            (vocab.parent / name).write_text(json.dumps(content, indent=indent))
            export = (*ours[:-1], name if name == ours[-1] else "hf/")
            fails(llmgpu(*export), 1, f"{name} is a tokenizer.json of another tool, and another ")
    assert llmgpu(*ours, "--force").returncode == 0
    assert (vocab.parent / "tokenizer.json").read_bytes() == own


def test_an_export_keeps_the_tensors_of_a_model(llmgpu: Run, vocab: Path) -> None:
    pytest.importorskip("gguf")
    (vocab.parent / "run").mkdir()
    save(vocab.parent / "run", 3)
    model = ("export", "run", "--to", "gguf", "-o", "m.gguf")
    vocabulary = ("export", "v.bin", "--to", "gguf", "-o", "m.gguf")
    for command in (vocabulary, vocabulary, model):
        done = llmgpu(*command)
        assert done.returncode == 0, done.stderr
    for command in (vocabulary, model):
        fails(llmgpu(*command), 1, "m.gguf is a GGUF file with 20 tensors, and another GGUF file")
    assert llmgpu(*vocabulary, "--force").returncode == 0


def test_a_missing_folder_is_named(llmgpu: Run, vocab: Path) -> None:
    tokenize = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "corpus.txt")
    done = llmgpu(*tokenize, "-o", "nano/train.bin", "--layout", "nanogpt")
    fails(done, 1, "can't write nano/train.bin: No such file or directory; make the folder nano")


def test_the_model_of_a_hugging_face_folder_to_gguf(llmgpu: Run, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    config = kind_of_model("qwen3")
    folder = write_folder(tmp_path / "m", config, weights_of(config), dtype="BF16")
    assert llmgpu("export", "m", "--to", "gguf", "-o", "m.gguf").returncode == 0
    reader = package.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.architecture"].contents() == "qwen3"
    assert len(reader.tensors) == len(weights_of(config))
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 270  # a name for each row
    (folder / "model.safetensors").unlink()
    assert llmgpu("export", "m", "--to", "gguf", "-o", "v.gguf").returncode == 0
    assert not package.GGUFReader(tmp_path / "v.gguf").tensors


def test_options_of_gguf(llmgpu: Run, v_bin: Path) -> None:
    to_gguf = ("export", "v.bin", "--to", "gguf", "-o", "m.gguf")
    fails(llmgpu(*to_gguf, "--weights", "f16"), 2, "--weights is only for")
    others = ("export", "v.bin", "--to", "tiktoken", "-o", "t.ranks", "--chat-template", "v.bin")
    fails(llmgpu(*others), 2, "--chat-template is only for gguf and huggingface")
    fails(llmgpu(*to_gguf, "--chat-template", "missing"), 1, "missing")
    (v_bin.parent / "m.gguf").write_text("{{ messages }}")
    fails(llmgpu(*to_gguf, "--chat-template", "m.gguf", "--force"), 1, "m.gguf is an input")
    fails(llmgpu(*to_gguf, "--chat-template", "v.bin"), 1, "v.bin: not UTF-8 at byte")


def test_the_chat_template_of_a_folder(llmgpu: Run, v_bin: Path) -> None:
    package = pytest.importorskip("gguf")
    folder = v_bin.parent / "hf"
    assert llmgpu("export", "v.bin", "--to", "hf", "-o", "hf/").returncode == 0
    for name, content in (
        ("tokenizer_config.json", json.dumps({"chat_template": "one"})),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "default", "template": "two"}]}),
        ),
        ("chat_template.jinja", "three"),
    ):
        (folder / name).write_text(content)
        done = llmgpu("export", "hf", "--to", "gguf", "-o", "v.gguf")
        assert done.returncode == 0, done.stderr
        found = package.GGUFReader(v_bin.parent / "v.gguf").fields["tokenizer.chat_template"]
        assert found.contents() in content
