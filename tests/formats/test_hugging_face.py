"""Repositories of the Hugging Face hub, through a stand-in for its library: what is asked of it, and what its failures become."""

import sys
import types

import pytest
from formats.site import make_quiet_surroundings
from models import lively, tiny

from elmofire import ModelError, load_weights, save_weights
from elmofire.errors import MissingExtra

LAYOUT = {"config.json", "model.safetensors", "vocab.txt", "characters.txt", "README.md"}


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    make_quiet_surroundings(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A huggingface_hub whose only repository is owner/tiny."""
    save_weights(lively(tiny()), tmp_path / "snapshot")
    calls = []

    def snapshot_download(repo_id, *, allow_patterns, local_files_only):
        calls.append((repo_id, set(allow_patterns), local_files_only))
        if repo_id == "owner/other":
            (tmp_path / "other").mkdir()
            return str(tmp_path / "other")
        if repo_id != "owner/tiny":
            raise FileNotFoundError("404: repository not found")
        return str(tmp_path / "snapshot")

    module = types.ModuleType("huggingface_hub")
    module.__spec__ = types.SimpleNamespace(name="huggingface_hub")
    module.snapshot_download = snapshot_download
    module.utils = types.SimpleNamespace(
        are_progress_bars_disabled=lambda: False,
        disable_progress_bars=lambda: calls.append("no progress bars"),
        enable_progress_bars=lambda: calls.append("progress bars"),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


@pytest.fixture
def _no_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("name", ["owner/tiny", "hf:owner/tiny"])
def test_a_repository_loads_and_only_our_files_are_asked_for(hub, name):
    assert load_weights(name).config == tiny()
    assert hub == [("owner/tiny", LAYOUT, False)]


def test_quiet_reaches_the_hubs_own_progress_bars_and_gives_them_back(hub, monkeypatch):
    load_weights("hf:owner/tiny", quiet=True)
    assert hub == ["no progress bars", ("owner/tiny", LAYOUT, False), "progress bars"]
    hub.clear()
    with pytest.raises(ModelError):
        load_weights("hf:owner/missing", quiet=True)
    assert hub[-1] == "progress bars"
    hub.clear()
    monkeypatch.setattr(sys.modules["huggingface_hub"].utils, "are_progress_bars_disabled", lambda: True)
    load_weights("hf:owner/tiny", quiet=True)
    assert hub == [("owner/tiny", LAYOUT, False)]


def test_offline_only_local_files_are_asked_for(hub, monkeypatch):
    monkeypatch.setenv("ELMOFIRE_OFFLINE", "1")
    load_weights("hf:owner/tiny")
    assert hub == [("owner/tiny", LAYOUT, True)]


def test_the_catalogue_comes_before_the_hub(hub, monkeypatch):
    monkeypatch.setenv("ELMOFIRE_OFFLINE", "1")
    with pytest.raises(ModelError, match="allenai/small: is not on this machine"):
        load_weights("allenai/small")
    assert hub == []


def test_what_the_hub_has_to_say_is_an_error_of_ours(hub):
    with pytest.raises(ModelError, match="hf:owner/absent: cannot be fetched: 404: repository not found"):
        load_weights("owner/absent")


def test_a_repository_without_our_layout_is_named(hub):
    with pytest.raises(ModelError, match=r"hf:owner/other: holds no config\.json"):
        load_weights("hf:owner/other")


@pytest.mark.parametrize("name", ["hf:", "hf:tiny", "hf:../..", "hf:a/b/c"])
def test_a_repository_has_an_owner_and_a_name(hub, name):
    with pytest.raises(ModelError, match="a repository is named hf:OWNER/NAME"):
        load_weights(name)
    assert hub == []


@pytest.mark.usefixtures("_no_hub")
def test_without_the_library_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"loading from the Hugging Face hub needs an extra(.|\n)*\.\[hub\]"):
        load_weights("hf:owner/tiny")


@pytest.mark.usefixtures("_no_hub")
def test_without_the_library_a_bare_name_is_just_unknown():
    with pytest.raises(ModelError, match="owner/tiny: no such file or folder, and no model of that name"):
        load_weights("owner/tiny")
